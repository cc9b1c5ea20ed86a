;; message-end traps.
;; world: export hostler:consumer/message-end@0.1.0;
(module
  (func (export "hostler:consumer/message-end@0.1.0#message-end") (param i32 i32 i32 i32 i32 i32 i32 i32 i64)
    (unreachable)))
