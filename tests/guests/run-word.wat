;; Does what the first letter of its body says; a number may follow.
;;   w<ms>    waits in a host call, then acks
;;   l        loops for ever
;;   t        traps
;;   m        takes memory until it is refused, then traps
;;   x<code>  exits with the code, after "bad row" on standard error
;;   s        says "on stdout" and "on stderr", then acks
;;   e        echoes its body on standard output, then acks
;; Anything else acks at once.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
  (memory (export "memory") 1)
  ;; 0: an iovec; 8: a count; 64: a subscription; 128: its event; 1024: the body
  (data (i32.const 512) "bad row\n")
  (data (i32.const 528) "on stdout\n")
  (data (i32.const 544) "on stderr\n")

  (func $write (param $fd i32) (param $at i32) (param $length i32)
    (i32.store (i32.const 0) (local.get $at))
    (i32.store (i32.const 4) (local.get $length))
    (drop (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))))

  ;; The decimal number from the body's second byte on.
  (func $number (result i32)
    (local $at i32) (local $digit i32) (local $number i32)
    (local.set $at (i32.const 1025))
    (loop $next
      (local.set $digit (i32.sub (i32.load8_u (local.get $at)) (i32.const 48)))
      (if (i32.lt_u (local.get $digit) (i32.const 10))
        (then
          (local.set $number (i32.add (i32.mul (local.get $number) (i32.const 10)) (local.get $digit)))
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (br $next))))
    (local.get $number))

  ;; Subscribes to the monotonic clock (id 1), relative, in nanoseconds.
  (func $wait (param $ms i32)
    (i32.store (i32.const 80) (i32.const 1))
    (i64.store (i32.const 88) (i64.mul (i64.extend_i32_u (local.get $ms)) (i64.const 1000000)))
    (drop (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 8))))

  (func (export "_start")
    (local $word i32)
    (i32.store (i32.const 0) (i32.const 1024))
    (i32.store (i32.const 4) (i32.const 4096))
    (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (local.set $word (i32.load8_u (i32.const 1024)))
    (if (i32.eq (local.get $word) (i32.const 0x77)) (then (call $wait (call $number))))
    (if (i32.eq (local.get $word) (i32.const 0x6c)) (then (loop $for_ever (br $for_ever))))
    (if (i32.eq (local.get $word) (i32.const 0x74)) (then (unreachable)))
    (if (i32.eq (local.get $word) (i32.const 0x6d))
      (then
        (loop $more (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
        (unreachable)))
    (if (i32.eq (local.get $word) (i32.const 0x78))
      (then
        (call $write (i32.const 2) (i32.const 512) (i32.const 8))
        (call $proc_exit (call $number))))
    (if (i32.eq (local.get $word) (i32.const 0x73))
      (then
        (call $write (i32.const 1) (i32.const 528) (i32.const 10))
        (call $write (i32.const 2) (i32.const 544) (i32.const 10))))
    (if (i32.eq (local.get $word) (i32.const 0x65))
      (then (call $write (i32.const 1) (i32.const 1024) (i32.load (i32.const 8)))))))
