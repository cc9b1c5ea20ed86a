;; Calls itself until its stack is used up.
(module
  (func $handle (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i32.add (call $handle (local.get 0)) (i32.const 1))))
