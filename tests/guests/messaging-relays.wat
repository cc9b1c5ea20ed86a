;; By wasi:messaging, sends its message to `out`, and returns what the send returns.
;; world: export wasi:messaging/incoming-handler@0.2.0-draft;
;; world: import wasi:messaging/producer@0.2.0-draft;
(module
  (import "wasi:messaging/types@0.2.0-draft" "[static]client.connect" (func $connect (param i32 i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[resource-drop]client" (func $drop-client (param i32)))
  (import "wasi:messaging/producer@0.2.0-draft" "send" (func $send (param i32 i32 i32 i32 i32)))
  (data (i32.const 96) "out")
  (func (export "wasi:messaging/incoming-handler@0.2.0-draft#handle") (param $message i32) (result i32)
    (local $client i32)
    (call $connect (i32.const 96) (i32.const 3) (i32.const 256))
    (local.set $client (i32.load (i32.const 260)))
    (call $send (local.get $client) (i32.const 96) (i32.const 3) (local.get $message) (i32.const 240))
    (call $drop-client (local.get $client))
    (i32.const 240)))
