;; Returns an error whose text is not UTF-8.
(module
  (data (i32.const 16) "\01\00\00\00" "\40\00\00\00" "\02") ;; err(64, 2)
  (data (i32.const 64) "\c3\28")
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i32.const 16)))
