;; Replies with a list of three items, of which the last two have the same dedupe key.
(module
  (data (i32.const 16) "\00\00\00\00" "\01\00\00\00" "\00\01\00\00" "\4d\00\00\00") ;; ok(reply(
  (data (i32.const 256) "[{\"payload\":1},{\"payload\":2,\"dedupe_key\":\"d\"},{\"payload\":3,\"dedupe_key\":\"d\"}]")
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i32.const 16)))
