;; By an earlier draft of wasi:messaging, in which errors have no cases.
;; package: package wasi:messaging@0.2.0-draft {
;; package:   interface types { resource message { constructor(data: list<u8>); } }
;; package:   interface incoming-handler { use types.{message}; handle: func(message: message) -> result<_, string>; }
;; package: }
;; world: export wasi:messaging/incoming-handler@0.2.0-draft;
(module
  (func (export "wasi:messaging/incoming-handler@0.2.0-draft#handle") (param i32) (result i32)
    (i32.const 32)))
