;; Keeps what it was given in the first granted folder, in two files named by MESSAGE_ID, the first variable of its
;; environment: `<id>.env` has a line per variable, and `<id>` the body, of any size.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 24)
  ;; 0: an iovec; 8: a count; 12: a descriptor; 16: the length of the environment; 32: where each variable is; 1024: the
  ;; name of a file; 65536: a chunk of the body; 131072: the environment, each variable ended by a zero

  ;; Creates the file whose name has this length.
  (func $create (param $length i32)
    (if
      (call $open (i32.const 3) (i32.const 0) (i32.const 1024) (local.get $length) (i32.const 1) (i64.const 64)
        (i64.const 0) (i32.const 0) (i32.const 12))
      (then (call $exit (i32.const 1)))))

  (func $put (param $at i32) (param $length i32)
    (i32.store (i32.const 0) (local.get $at))
    (i32.store (i32.const 4) (local.get $length))
    (if (call $write (i32.load (i32.const 12)) (i32.const 0) (i32.const 1) (i32.const 8))
      (then (call $exit (i32.const 2)))))

  (func (export "_start") (local $length i32) (local $at i32) (local $end i32)
    (drop (call $sizes (i32.const 8) (i32.const 16)))
    (drop (call $environ (i32.const 32) (i32.const 131072)))
    (loop $next ;; the id begins after `MESSAGE_ID=`
      (i32.store8 (i32.add (i32.const 1024) (local.get $length))
        (i32.load8_u (i32.add (i32.const 131083) (local.get $length))))
      (local.set $length (i32.add (local.get $length) (i32.const 1)))
      (br_if $next (i32.load8_u (i32.add (i32.const 131083) (local.get $length)))))

    (i32.store (i32.add (i32.const 1024) (local.get $length)) (i32.const 0x766e652e)) ;; .env
    (call $create (i32.add (local.get $length) (i32.const 4)))
    (local.set $at (i32.const 131072))
    (local.set $end (i32.add (local.get $at) (i32.load (i32.const 16))))
    (loop $lines
      (if (i32.lt_u (local.get $at) (local.get $end)) (then
        (if (i32.eqz (i32.load8_u (local.get $at))) (then (i32.store8 (local.get $at) (i32.const 0x0a))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $lines))))
    (call $put (i32.const 131072) (i32.load (i32.const 16)))

    (call $create (local.get $length))
    (loop $more
      (i32.store (i32.const 0) (i32.const 65536))
      (i32.store (i32.const 4) (i32.const 65536))
      (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 20)))
      (if (i32.load (i32.const 20)) (then
        (call $put (i32.const 65536) (i32.load (i32.const 20)))
        (br $more))))))
