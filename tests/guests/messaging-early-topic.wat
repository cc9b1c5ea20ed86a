;; By an earlier draft of wasi:messaging, in which a message always has a topic.
;; package: package wasi:messaging@0.2.0-draft {
;; package:   interface types {
;; package:     variant error { timeout, connection(string), permission-denied(string), other(string) }
;; package:     resource message { topic: func() -> string; }
;; package:   }
;; package:   interface incoming-handler { use types.{message, error}; handle: func(message: message) -> result<_, error>; }
;; package: }
;; world: export wasi:messaging/incoming-handler@0.2.0-draft;
(module
  (import "wasi:messaging/types@0.2.0-draft" "[method]message.topic" (func $topic (param i32 i32)))
  (func (export "wasi:messaging/incoming-handler@0.2.0-draft#handle") (param $message i32) (result i32)
    (call $topic (local.get $message) (i32.const 16))
    (i32.const 32)))
