;; Traps.
(module
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (unreachable)))
