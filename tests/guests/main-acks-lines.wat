;; Acks each line of a batch, in its own write, up to one with `!` in it, at which it exits with 3. Acks nothing of a line with `?`.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 4)
  (data (i32.const 64) "{\"outcome\":\"ack\",")
  ;; Writes the line from after its brace.
  (func $ack (param $from i32) (param $to i32)
    (i32.store (i32.const 16) (i32.const 64))
    (i32.store (i32.const 20) (i32.const 17))
    (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 8)))
    (i32.store (i32.const 16) (i32.add (local.get $from) (i32.const 1)))
    (i32.store (i32.const 20) (i32.sub (i32.sub (local.get $to) (local.get $from)) (i32.const 1)))
    (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 8))))
  (func (export "_start")
    (local $end i32) (local $from i32) (local $at i32) (local $byte i32) (local $skip i32)
    (local.set $end (i32.const 4096))
    (loop $more
      (i32.store (i32.const 0) (local.get $end))
      (i32.store (i32.const 4) (i32.const 4096))
      (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
      (local.set $end (i32.add (local.get $end) (i32.load (i32.const 8))))
      (br_if $more (i32.load (i32.const 8))))
    (local.set $from (i32.const 4096))
    (local.set $at (i32.const 4096))
    (loop $next
      (if (i32.lt_u (local.get $at) (local.get $end)) (then
        (local.set $byte (i32.load8_u (local.get $at)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (if (i32.eq (local.get $byte) (i32.const 0x21)) (then (call $exit (i32.const 3)))) ;; !
        (if (i32.eq (local.get $byte) (i32.const 0x3f)) (then (local.set $skip (i32.const 1)))) ;; ?
        (if (i32.eq (local.get $byte) (i32.const 0x0a)) (then
          (if (i32.eqz (local.get $skip)) (then (call $ack (local.get $from) (local.get $at))))
          (local.set $skip (i32.const 0))
          (local.set $from (local.get $at))))
        (br $next))))))
