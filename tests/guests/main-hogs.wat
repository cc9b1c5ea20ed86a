;; Takes memory until it gets no more, writes to every page of it, holds it for 300 ms, then traps.
(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start") (local $at i32)
    (loop $grow (br_if $grow (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
    (local.set $at (i32.const 2048))
    (loop $touch
      (i32.store (local.get $at) (i32.const 1))
      (local.set $at (i32.add (local.get $at) (i32.const 4096)))
      (br_if $touch (i32.lt_u (local.get $at) (i32.mul (memory.size) (i32.const 65536)))))
    (i32.store (i32.const 16) (i32.const 1)) ;; the monotonic clock
    (i64.store (i32.const 24) (i64.const 300000000))
    (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))
    (unreachable)))
