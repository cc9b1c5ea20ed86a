;; Prints the file that the body names, in the first granted folder; exits with the number of the error.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\10\00\00\00" "\00\10\00\00") ;; to (16, 4096)
  (func (export "_start") (local $error i32)
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 4)))
    (local.set $error (call $open (i32.const 3) (i32.const 1) (i32.const 16) (i32.load (i32.const 4)) (i32.const 0)
      (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 8)))
    (if (local.get $error) (then (call $exit (local.get $error))))
    (i32.store (i32.const 4) (i32.const 4096))
    (drop (call $read (i32.load (i32.const 8)) (i32.const 0) (i32.const 1) (i32.const 4)))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 12)))))
