;; Writes a file `<body>.<attempt>.<message id>` with the current time into the granted folder, and then acks.
;; The first letter of the body selects additional behaviour:
;;   s  waits before writing, for 250 ms times the last digit
;;   f  fails before writing, until the third attempt
;;   o  fails before writing, on the first attempt, if the last digit is 7
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 2)
  ;; Memory: 0: an iovec; 8: a count; 12: a descriptor; 16: the number of variables; 24: the time; 64: a subscription;
  ;; 128: its event; 1024: the body, then the rest of the file name; 8192: addresses of variables; 65536: the variables
  (data (i32.const 256) "MESSAGE_ATTEMPT=")
  (data (i32.const 288) "MESSAGE_ID=")
  (global $end (mut i32) (i32.const 1024))

  (func $fail (call $exit (i32.const 1)))

  ;; Appends a dot and the value of the variable with this prefix to the file name. Returns the address of the value.
  (func $value (param $prefix i32) (param $length i32) (result i32)
    (local $n i32) (local $at i32) (local $same i32) (local $value i32)
    (loop $next
      (local.set $at (i32.load offset=8192 (i32.mul (local.get $n) (i32.const 4))))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (local.set $same (i32.const 0))
      (loop $bytes
        (br_if $next (i32.ne
          (i32.load8_u (i32.add (local.get $at) (local.get $same)))
          (i32.load8_u (i32.add (local.get $prefix) (local.get $same)))))
        (local.set $same (i32.add (local.get $same) (i32.const 1)))
        (br_if $bytes (i32.lt_u (local.get $same) (local.get $length)))))
    (i32.store8 (global.get $end) (i32.const 0x2e))
    (global.set $end (i32.add (global.get $end) (i32.const 1)))
    (local.set $value (global.get $end))
    (local.set $at (i32.add (local.get $at) (local.get $length)))
    (loop $copy
      (i32.store8 (global.get $end) (i32.load8_u (local.get $at)))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (global.set $end (i32.add (global.get $end) (i32.const 1)))
      (br_if $copy (i32.load8_u (local.get $at))))
    (local.get $value))

  (func (export "_start") (local $letter i32) (local $digit i32) (local $attempt i32)
    (i32.store (i32.const 0) (i32.const 1024))
    (i32.store (i32.const 4) (i32.const 1024))
    (if (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then (call $fail)))
    (global.set $end (i32.add (i32.const 1024) (i32.load (i32.const 8))))
    (local.set $letter (i32.load8_u (i32.const 1024)))
    (local.set $digit (i32.sub (i32.load8_u (i32.sub (global.get $end) (i32.const 1))) (i32.const 0x30)))
    (drop (call $sizes (i32.const 16) (i32.const 8)))
    (drop (call $environ (i32.const 8192) (i32.const 65536)))
    (local.set $attempt (call $value (i32.const 256) (i32.const 16)))
    ;; The attempt: one digit, or 10 for more digits.
    (local.set $attempt (select
      (i32.sub (i32.load8_u (local.get $attempt)) (i32.const 0x30))
      (i32.const 10)
      (i32.eq (i32.sub (global.get $end) (local.get $attempt)) (i32.const 1))))
    (drop (call $value (i32.const 288) (i32.const 11)))

    (if (i32.eq (local.get $letter) (i32.const 0x73)) (then
      (i32.store (i32.const 80) (i32.const 1)) ;; the monotonic clock
      (i64.store (i32.const 88) (i64.mul (i64.extend_i32_u (local.get $digit)) (i64.const 250000000)))
      (drop (call $poll (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 8)))))
    (if (i32.and (i32.eq (local.get $letter) (i32.const 0x66)) (i32.lt_u (local.get $attempt) (i32.const 3)))
      (then (call $fail)))
    (if (i32.and
          (i32.eq (local.get $letter) (i32.const 0x6f))
          (i32.and (i32.eq (local.get $digit) (i32.const 7)) (i32.eq (local.get $attempt) (i32.const 1))))
      (then (call $fail)))

    ;; Descriptor 3 is the granted folder; oflags 1 creates the file; right 64 allows writing.
    (if
      (call $open (i32.const 3) (i32.const 0) (i32.const 1024) (i32.sub (global.get $end) (i32.const 1024))
        (i32.const 1) (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 12))
      (then (call $fail)))
    (drop (call $clock (i32.const 0) (i64.const 1) (i32.const 24)))
    (i32.store (i32.const 0) (i32.const 24))
    (i32.store (i32.const 4) (i32.const 8))
    (if (call $write (i32.load (i32.const 12)) (i32.const 0) (i32.const 1) (i32.const 8)) (then (call $fail)))))
