;; By an earlier draft of wasi:messaging, in which the handler says to which topics it listens.
;; package: package wasi:messaging@0.2.0-draft {
;; package:   interface types {
;; package:     variant error { timeout, connection(string), permission-denied(string), other(string) }
;; package:     resource message { constructor(data: list<u8>); }
;; package:   }
;; package:   interface incoming-handler {
;; package:     use types.{message, error};
;; package:     handle: func(message: message) -> result<_, error>;
;; package:     get-topics: func() -> result<list<string>, error>;
;; package:   }
;; package: }
;; world: export wasi:messaging/incoming-handler@0.2.0-draft;
(module
  (func (export "wasi:messaging/incoming-handler@0.2.0-draft#handle") (param i32) (result i32)
    (i32.const 32))
  (func (export "wasi:messaging/incoming-handler@0.2.0-draft#get-topics") (result i32)
    (i32.const 32)))
