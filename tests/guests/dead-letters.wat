;; Dead-letters the message with a reason.
(module
  (data (i32.const 16) "\00\00\00\00" "\04\00\00\00" "\40\00\00\00" "\10") ;; ok(dead-letter(64, 16))
  (data (i32.const 64) "no such customer")
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i32.const 16)))
