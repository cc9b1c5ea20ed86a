;; Asks twice which folder it has. Exits with the number of the error if the body begins with x.
(module
  (import "wasi_snapshot_preview1" "fd_prestat_get" (func $folder (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\10\00\00\00" "\01\00\00\00") ;; to (16, 1)
  (func (export "_start")
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (drop (call $folder (i32.const 3) (i32.const 32)))
    (call $exit (i32.mul
      (call $folder (i32.const 3) (i32.const 32))
      (i32.eq (i32.load8_u (i32.const 16)) (i32.const 0x78))))))
