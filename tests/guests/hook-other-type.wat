;; A hook apart, message-end, that is of another type.
;; package: package hostler:consumer@0.1.9 { interface message-end { message-end: func(message-id: string); } }
;; world: export hostler:consumer/message-end@0.1.9;
(module
  (func (export "hostler:consumer/message-end@0.1.9#message-end") (param i32 i32)))
