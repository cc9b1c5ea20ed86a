;; Writes a line with a carriage return, escapes of a terminal and a bell to standard output and to standard error, and exits with 65.
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\10\00\00\00" "\0f\00\00\00") ;; from (16, 15)
  (data (i32.const 16) "up\0dover\1b[2J\07\c2\9b\0a")
  (func (export "_start")
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
    (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8)))
    (call $exit (i32.const 65))))
