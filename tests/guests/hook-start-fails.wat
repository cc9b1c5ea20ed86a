;; message-start returns an error.
;; world: export hostler:consumer/message-start@0.1.0;
(module
  (data (i32.const 16) "\01\00\00\00" "\40\00\00\00" "\0c") ;; err(64, 12)
  (data (i32.const 64) "out of hours")
  (func (export "hostler:consumer/message-start@0.1.0#message-start") (param i32) (result i32)
    (i32.const 16)))
