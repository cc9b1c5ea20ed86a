;; Tells what it was given, on standard output: a line per variable of its environment, then its body.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ_sizes_get (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ_get (param i32 i32) (result i32)))
  (memory (export "memory") 2)
  ;; 0: an iovec; 8: a count; 16: the length of the environment; 1024: where each variable is; 8192: the environment,
  ;; each variable ended by a zero; 65536: the body

  (func $write (param $at i32) (param $length i32)
    (i32.store (i32.const 0) (local.get $at))
    (i32.store (i32.const 4) (local.get $length))
    (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))

  (func (export "_start")
    (local $at i32) (local $end i32)
    (drop (call $environ_sizes_get (i32.const 8) (i32.const 16)))
    (drop (call $environ_get (i32.const 1024) (i32.const 8192)))
    (local.set $at (i32.const 8192))
    (local.set $end (i32.add (i32.const 8192) (i32.load (i32.const 16))))
    (loop $next
      (if (i32.lt_u (local.get $at) (local.get $end))
        (then
          (if (i32.eqz (i32.load8_u (local.get $at))) (then (i32.store8 (local.get $at) (i32.const 10))))
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (br $next))))
    (call $write (i32.const 8192) (i32.load (i32.const 16)))
    (i32.store (i32.const 0) (i32.const 65536))
    (i32.store (i32.const 4) (i32.const 4096))
    (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (call $write (i32.const 65536) (i32.load (i32.const 8)))))
