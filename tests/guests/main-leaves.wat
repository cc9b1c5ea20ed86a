;; Exits with 7 if it finds anything in memory that was not written yet; else it writes there, and waits for a second.
(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 16)
  (data (i32.const 0) "an image")
  (func (export "_start") (local $at i32)
    (local.set $at (i32.const 0x10000))
    (loop $next
      (if (i32.load (local.get $at)) (then (call $exit (i32.const 7))))
      (i32.store (local.get $at) (i32.const 0x1ef7))
      (local.set $at (i32.add (local.get $at) (i32.const 4096)))
      (br_if $next (i32.lt_u (local.get $at) (i32.const 0x100000))))
    (i32.store (i32.const 80) (i32.const 1)) ;; the monotonic clock
    (i64.store (i32.const 88) (i64.const 1000000000))
    (drop (call $poll (i32.const 64) (i32.const 256) (i32.const 1) (i32.const 512)))
    (call $exit (i32.const 0))))
