;; Imports what no host has, and calls it if the body is not empty.
;; package: package acme:unknown@1.0.0 { interface clock { now: func() -> u64; } }
;; world: include hostler:consumer/consumer@0.1.0;
;; world: import acme:unknown/clock@1.0.0;
(module
  (import "acme:unknown/clock@1.0.0" "now" (func $now (result i64)))
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (if (i32.load offset=20 (local.get 0)) (then (drop (call $now))))
    (i32.const 16)))
