;; Exports the contract's handler, whose function is of another type.
;; package: package hostler:consumer@0.1.9 { interface handler { handle: func(body: list<u8>) -> result<_, string>; } }
;; world: export hostler:consumer/handler@0.1.9;
(module
  (func (export "hostler:consumer/handler@0.1.9#handle") (param i32 i32) (result i32)
    (i32.const 16)))
