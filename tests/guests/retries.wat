;; Asks for another attempt.
(module
  (data (i32.const 16) "\00\00\00\00" "\02") ;; ok(retry)
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i32.const 16)))
