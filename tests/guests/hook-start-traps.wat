;; message-start traps.
;; world: export hostler:consumer/message-start@0.1.0;
(module
  (func (export "hostler:consumer/message-start@0.1.0#message-start") (param i32) (result i32)
    (unreachable)))
