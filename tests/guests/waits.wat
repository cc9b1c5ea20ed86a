;; Waits for an hour, inside a call of the host.
;; world: include hostler:consumer/consumer@0.1.0;
;; world: import wasi:clocks/monotonic-clock@0.2.0;
(module
  (import "wasi:clocks/monotonic-clock@0.2.0" "subscribe-duration" (func $subscribe (param i64) (result i32)))
  (import "wasi:io/poll@0.2.0" "[method]pollable.block" (func $block (param i32)))
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (call $block (call $subscribe (i64.const 3600000000000)))
    (i32.const 16)))
