;; Asks twice which folder it has, and exits with the number of the error.
(module
  (import "wasi_snapshot_preview1" "fd_prestat_get" (func $folder (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (drop (call $folder (i32.const 3) (i32.const 0)))
    (call $exit (call $folder (i32.const 3) (i32.const 0)))))
