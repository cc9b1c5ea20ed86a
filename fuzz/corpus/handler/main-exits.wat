;; Exits with the code that the body says, in decimal.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\10\00\00\00" "\10\00\00\00") ;; to (16, 16)
  (func (export "_start") (local $at i32) (local $code i32)
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (loop $digits
      (if (i32.lt_u (local.get $at) (i32.load (i32.const 8))) (then
        (local.set $code (i32.add (i32.mul (local.get $code) (i32.const 10))
          (i32.sub (i32.load8_u offset=16 (local.get $at)) (i32.const 0x30))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $digits))))
    (call $exit (local.get $code))))
