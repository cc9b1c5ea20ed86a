;; Replies with the body.
(module
  (data (i32.const 16) "\00\00\00\00" "\01\00\00\00") ;; ok(reply(
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i64.store (i32.const 24) (i64.load offset=16 (local.get 0)))
    (i32.const 16)))
