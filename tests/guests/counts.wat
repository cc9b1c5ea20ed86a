;; Dead-letters with the number of messages that this instance has seen, one digit; traps on a body that begins with !.
(module
  (global $seen (mut i32) (i32.const 0x30))
  (data (i32.const 16) "\00\00\00\00" "\04\00\00\00" "\40\00\00\00" "\01") ;; ok(dead-letter(64, 1))
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (if (i32.eq (i32.load8_u (i32.load offset=16 (local.get 0))) (i32.const 0x21)) (then (unreachable)))
    (global.set $seen (i32.add (global.get $seen) (i32.const 1)))
    (i32.store8 (i32.const 64) (global.get $seen))
    (i32.const 16)))
