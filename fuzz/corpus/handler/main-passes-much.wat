;; Offers the host half of its memory and as much again in one write, then exits with the number of the error.
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 160)
  (func (export "_start")
    (i32.store (i32.const 4) (i32.const 10000000))
    (call $exit (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 12)))))
