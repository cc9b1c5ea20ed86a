;; Writes one line of 5 MiB to standard error, and exits with 65.
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 2)
  (data (i32.const 0) "\00\10\00\00" "\00\00\01\00") ;; from (4096, 64 KiB)
  (func (export "_start") (local $times i32)
    (memory.fill (i32.const 4096) (i32.const 0x78) (i32.const 65536))
    (loop
      (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8)))
      (local.set $times (i32.add (local.get $times) (i32.const 1)))
      (br_if 0 (i32.lt_u (local.get $times) (i32.const 80))))
    (call $exit (i32.const 65))))
