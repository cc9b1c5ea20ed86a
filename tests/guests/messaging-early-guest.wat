;; By the first draft of wasi:messaging that has this version, whose handler has another name.
;; package: package wasi:messaging@0.2.0-draft {
;; package:   interface messaging-guest { handler: func(messages: list<list<u8>>) -> result; }
;; package: }
;; world: export wasi:messaging/messaging-guest@0.2.0-draft;
(module
  (func (export "wasi:messaging/messaging-guest@0.2.0-draft#handler") (param i32 i32) (result i32)
    (i32.const 0)))
