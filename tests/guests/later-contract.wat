;; Exports the handler of a later contract.
;; package: package hostler:consumer@0.2.0 { interface handler { handle: func() -> result; } }
;; world: export hostler:consumer/handler@0.2.0;
(module
  (func (export "hostler:consumer/handler@0.2.0#handle") (result i32)
    (i32.const 0)))
