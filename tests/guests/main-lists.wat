;; Lists the first granted folder and prints the first 3,000 names, a line each, or 100 if there is a body; exits with 90 if an entry is not what its file is, or with the number of the error.
(module
  (import "wasi_snapshot_preview1" "fd_readdir" (func $list (param i32 i32 i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_filestat_get" (func $stat (param i32 i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 24) "\n")
  (global $left (mut i32) (i32.const 3000))
  (func $print (param $from i32) (param $length i32)
    (i32.store (i32.const 0) (local.get $from))
    (i32.store (i32.const 4) (local.get $length))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))
  ;; Compares the entry at $at with its file: the serial number and the type.
  (func $compare (param $at i32) (param $length i32)
    (if (call $stat (i32.const 3) (i32.const 0) (i32.add (local.get $at) (i32.const 24)) (local.get $length) (i32.const 64))
      (then (call $exit (i32.const 90))))
    (if (i64.ne (i64.load (i32.const 72)) (i64.load offset=8 (local.get $at))) (then (call $exit (i32.const 90))))
    (if (i32.ne (i32.load8_u (i32.const 80)) (i32.load8_u offset=20 (local.get $at))) (then (call $exit (i32.const 90)))))
  (func (export "_start") (local $at i32) (local $end i32) (local $length i32) (local $cookie i64) (local $error i32)
    (i32.store (i32.const 32) (i32.const 40))
    (i32.store (i32.const 36) (i32.const 1))
    (drop (call $read (i32.const 0) (i32.const 32) (i32.const 1) (i32.const 44)))
    (if (i32.load (i32.const 44)) (then (global.set $left (i32.const 100))))
    (loop $more
      (local.set $error (call $list (i32.const 3) (i32.const 4096) (i32.const 4096) (local.get $cookie) (i32.const 16)))
      (if (local.get $error) (then (call $exit (local.get $error))))
      (local.set $at (i32.const 4096))
      (local.set $end (i32.add (i32.const 4096) (i32.load (i32.const 16))))
      (block $done
        (loop $entry
          (br_if $done (i32.gt_u (i32.add (local.get $at) (i32.const 24)) (local.get $end)))
          (local.set $length (i32.load offset=16 (local.get $at)))
          (br_if $done (i32.gt_u (i32.add (i32.add (local.get $at) (i32.const 24)) (local.get $length)) (local.get $end)))
          (local.set $cookie (i64.load (local.get $at)))
          ;; Not those of the folder itself and of what is above it.
          (if (i32.and (i32.ne (i32.load8_u offset=24 (local.get $at)) (i32.const 46)) (i32.ne (global.get $left) (i32.const 0))) (then
            (global.set $left (i32.sub (global.get $left) (i32.const 1)))
            (call $compare (local.get $at) (local.get $length))
            (call $print (i32.add (local.get $at) (i32.const 24)) (local.get $length))
            (call $print (i32.const 24) (i32.const 1))))
          (local.set $at (i32.add (i32.add (local.get $at) (i32.const 24)) (local.get $length)))
          (br $entry)))
      ;; A buffer that is full may not be the end.
      (br_if $more (i32.eq (i32.load (i32.const 16)) (i32.const 4096))))))
