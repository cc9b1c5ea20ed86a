;; processing-timeout acks.
;; world: export hostler:consumer/processing-timeout@0.1.0;
(module
  (func (export "hostler:consumer/processing-timeout@0.1.0#processing-timeout") (param i32) (result i32)
    (i32.const 16)))
