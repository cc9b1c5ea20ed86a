;; Fails until its attempt is the digit that its body begins with; then acks.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  ;; 0: an iovec for (64, 1); 8: a count; 16: how many variables; 128: where each is; 4096: the variables
  (data (i32.const 0) "\40\00\00\00" "\01\00\00\00")
  (data (i32.const 32) "MESSAGE_ATTEMPT=")
  (func (export "_start") (local $n i32) (local $variable i32)
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (drop (call $sizes (i32.const 16) (i32.const 8)))
    (drop (call $environ (i32.const 128) (i32.const 4096)))
    (loop $next
      (local.set $variable (i32.load offset=128 (i32.mul (local.get $n) (i32.const 4))))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br_if $next (i64.ne (i64.load (local.get $variable)) (i64.load (i32.const 32))))
      (br_if $next (i64.ne (i64.load offset=8 (local.get $variable)) (i64.load (i32.const 40)))))
    (if (i32.lt_u (i32.load8_u offset=16 (local.get $variable)) (i32.load8_u (i32.const 64)))
      (then (call $exit (i32.const 1))))))
