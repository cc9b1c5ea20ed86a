;; Replies with 4 GiB that it does not have.
(module
  (data (i32.const 16) "\00\00\00\00" "\01\00\00\00" "\40\00\00\00" "\ff\ff\ff\ff") ;; ok(reply(64, 2^32 - 1))
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i32.const 16)))
