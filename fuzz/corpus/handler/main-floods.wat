;; Writes 10 MiB, in turns to standard output and to standard error.
(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\00\10\00\00" "\00\80\00\00") ;; from (4096, 32768)
  (func (export "_start") (local $times i32)
    (memory.fill (i32.const 4096) (i32.const 0x78) (i32.const 32768))
    (loop
      (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
      (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 8)))
      (local.set $times (i32.add (local.get $times) (i32.const 1)))
      (br_if 0 (i32.lt_u (local.get $times) (i32.const 160))))))
