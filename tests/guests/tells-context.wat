;; Replies with remaining-ms (8 bytes, little endian) and should-stop (1 byte).
(module
  (import "hostler:consumer/context@0.1.0" "remaining-ms" (func $remaining-ms (result i64)))
  (import "hostler:consumer/context@0.1.0" "should-stop" (func $should-stop (result i32)))
  (data (i32.const 16) "\00\00\00\00" "\01\00\00\00" "\40\00\00\00" "\09") ;; ok(reply(64, 9))
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i64.store (i32.const 64) (call $remaining-ms))
    (i32.store8 (i32.const 72) (call $should-stop))
    (i32.const 16)))
