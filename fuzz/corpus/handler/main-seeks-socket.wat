;; Looks for a socket among the first 16 descriptors; exits with the number of the one that accepts, or with 0.
(module
  (import "wasi_snapshot_preview1" "sock_accept" (func $accept (param i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (func (export "_start") (local $fd i32)
    (loop
      (if (i32.eqz (call $accept (local.get $fd) (i32.const 0) (i32.const 8))) (then (call $exit (local.get $fd))))
      (local.set $fd (i32.add (local.get $fd) (i32.const 1)))
      (br_if 0 (i32.lt_u (local.get $fd) (i32.const 16))))))
