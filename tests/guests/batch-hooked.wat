;; Exports a batch handler, and a hook that is called for single messages.
;; world: include hostler:consumer/batch-consumer@0.1.0;
;; world: export hostler:consumer/message-start@0.1.0;
(module
  (func (export "hostler:consumer/batch-handler@0.1.0#handle-batch") (param i32 i32) (result i32)
    (i32.const 16))
  (func (export "hostler:consumer/message-start@0.1.0#message-start") (param i32) (result i32)
    (i32.const 16)))
