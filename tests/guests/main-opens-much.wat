;; Opens the first granted folder 2,000 times, and closes none; exits with 1 if one is refused.
(module
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) ".")
  (func (export "_start") (local $count i32)
    (loop $again
      (if (call $open (i32.const 3) (i32.const 0) (i32.const 16) (i32.const 1) (i32.const 2)
          (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 8))
        (then (call $exit (i32.const 1))))
      (local.set $count (i32.add (local.get $count) (i32.const 1)))
      (br_if $again (i32.lt_u (local.get $count) (i32.const 2000))))))
