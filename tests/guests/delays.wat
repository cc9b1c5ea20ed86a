;; Asks for another attempt in 7 seconds.
(module
  (data (i32.const 16) "\00\00\00\00" "\03\00\00\00" "\07") ;; ok(delay(7))
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i32.const 16)))
