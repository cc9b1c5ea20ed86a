;; Creates the file that the body names, in the first granted folder, and makes it a TiB large; exits with the number of
;; the error.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_filestat_set_size" (func $set_size (param i32 i64) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\10\00\00\00" "\00\10\00\00") ;; to (16, 4096)
  (func (export "_start") (local $error i32)
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 4)))
    (local.set $error (call $open (i32.const 3) (i32.const 1) (i32.const 16) (i32.load (i32.const 4)) (i32.const 1)
      (i64.const 0x400040) (i64.const 0) (i32.const 0) (i32.const 8)))
    (if (local.get $error) (then (call $exit (local.get $error))))
    (call $exit (call $set_size (i32.load (i32.const 8)) (i64.const 0x10000000000)))))
