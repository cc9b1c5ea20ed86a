;; By a later version of wasmcloud:messaging.
;; package: package wasmcloud:messaging@0.3.0 { interface handler { handle-message: func() -> result<_, string>; } }
;; world: export wasmcloud:messaging/handler@0.3.0;
(module
  (func (export "wasmcloud:messaging/handler@0.3.0#handle-message") (result i32)
    (i32.const 32)))
