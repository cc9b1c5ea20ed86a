;; Returns an outcome that does not exist.
(module
  (data (i32.const 16) "\00\00\00\00" "\05") ;; ok(the case after dead-letter)
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i32.const 16)))
