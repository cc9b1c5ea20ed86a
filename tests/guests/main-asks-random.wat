;; Asks for 1 MiB of random bytes at once, and for a byte more if its standard input is not empty.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 18)
  (data (i32.const 0) "\10\00\00\00" "\01\00\00\00") ;; one buffer: (16, 1)
  (func (export "_start")
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (call $exit (call $random (i32.const 65536) (i32.add (i32.const 1048576) (i32.load (i32.const 8)))))))
