;; Works for 20 ms. Then fails if the body begins with `b`, and acks otherwise.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
  (memory (export "memory") 1)
  ;; 0: an iovec; 8: a count; 64: a subscription; 128: its event; 1024: the body
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 1024))
    (i32.store (i32.const 4) (i32.const 64))
    (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    ;; The monotonic clock (id 1), relative, in nanoseconds.
    (i32.store (i32.const 80) (i32.const 1))
    (i64.store (i32.const 88) (i64.const 20000000))
    (drop (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 8)))
    (if (i32.eq (i32.load8_u (i32.const 1024)) (i32.const 0x62)) (then (call $proc_exit (i32.const 1))))))
