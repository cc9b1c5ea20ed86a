;; Returns an error.
(module
  (data (i32.const 16) "\01\00\00\00" "\40\00\00\00" "\14") ;; err(64, 20)
  (data (i32.const 64) "the database is away")
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i32.const 16)))
