;; A command that computes until 0.96 s have passed, and then writes to all of its 512 MiB at once, again and again: the first time
;; each page is new. It fills its memory, or with the body `c` copies one half of it to the other.
(module
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 8192)
  ;; 0: the time; 16: a vector of 8 bytes at 32; 24: how many were read.
  (func $now (result i64)
    (drop (call $clock (i32.const 1) (i64.const 0) (i32.const 0)))
    (i64.load (i32.const 0)))
  (func (export "_start")
    (local $until i64) (local $copies i32)
    (i32.store (i32.const 16) (i32.const 32))
    (i32.store (i32.const 20) (i32.const 8))
    (drop (call $read (i32.const 0) (i32.const 16) (i32.const 1) (i32.const 24)))
    (local.set $copies (i32.eq (i32.load8_u (i32.const 32)) (i32.const 99)))
    (local.set $until (i64.add (call $now) (i64.const 960000000)))
    (loop $waits (br_if $waits (i64.lt_u (call $now) (local.get $until))))
    (loop $again
      (if (local.get $copies)
        (then (memory.copy (i32.const 0x10000000) (i32.const 0) (i32.const 0x10000000)))
        (else (memory.fill (i32.const 0x10000) (i32.const 7) (i32.const 0x1fff0000))))
      (br $again))))
