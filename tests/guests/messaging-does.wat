;; By wasi:messaging, does what the first letter of its body says.
;;   a  acks
;;   e  returns an error
;;   t  traps
;;   s  sends a copy of the message to `out`: content type, body, metadata, and in `from` its topic
;;   f  sends the message itself to `out`, with a body, a content type and metadata changed
;;   d  sends by a client that is disconnected
;;   q  requests an answer
;;   r  replies
;; world: export wasi:messaging/incoming-handler@0.2.0-draft;
;; world: import wasi:messaging/producer@0.2.0-draft;
;; world: import wasi:messaging/request-reply@0.2.0-draft;
(module
  (import "wasi:messaging/types@0.2.0-draft" "[static]client.connect" (func $connect (param i32 i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[method]client.disconnect" (func $disconnect (param i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[resource-drop]client" (func $drop-client (param i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[resource-drop]message" (func $drop-message (param i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[constructor]message" (func $new (param i32 i32) (result i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[method]message.topic" (func $topic (param i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[method]message.content-type" (func $content-type (param i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[method]message.set-content-type"
    (func $set-content-type (param i32 i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[method]message.data" (func $data (param i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[method]message.set-data" (func $set-data (param i32 i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[method]message.metadata" (func $metadata (param i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[method]message.set-metadata" (func $set-metadata (param i32 i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[method]message.add-metadata"
    (func $add-metadata (param i32 i32 i32 i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[method]message.remove-metadata"
    (func $remove-metadata (param i32 i32 i32)))
  (import "wasi:messaging/producer@0.2.0-draft" "send" (func $send (param i32 i32 i32 i32 i32)))
  (import "wasi:messaging/request-reply@0.2.0-draft" "request" (func $request (param i32 i32 i32 i32 i32 i32 i32)))
  (import "wasi:messaging/request-reply@0.2.0-draft" "reply" (func $reply (param i32 i32 i32)))
  (import "wasi:messaging/request-reply@0.2.0-draft" "[constructor]request-options" (func $options (result i32)))
  (import "wasi:messaging/request-reply@0.2.0-draft" "[method]request-options.set-timeout-ms"
    (func $set-timeout (param i32 i32)))
  (data (i32.const 32) "\01\00\00\00" "\03\00\00\00" "\40\00\00\00" "\14") ;; err(other(64, 20))
  (data (i32.const 64) "the database is away")
  (data (i32.const 96) "out")
  (data (i32.const 104) "from")
  (data (i32.const 112) "content-type")
  (data (i32.const 128) "Zone")
  (func $client (result i32)
    (call $connect (i32.const 96) (i32.const 3) (i32.const 256))
    (i32.load (i32.const 260)))
  (func $copy (param $message i32) (result i32)
    (local $made i32)
    (local.set $made (call $new (i32.load (i32.const 208)) (i32.load (i32.const 212))))
    ;; The content type comes first, as what sets the metadata must not lose it.
    (call $content-type (local.get $message) (i32.const 224))
    (if (i32.load8_u (i32.const 224))
      (then (call $set-content-type (local.get $made) (i32.load (i32.const 228)) (i32.load (i32.const 232)))))
    (call $remove-metadata (local.get $message) (i32.const 112) (i32.const 12))
    (call $metadata (local.get $message) (i32.const 224))
    (if (i32.load8_u (i32.const 224))
      (then (call $set-metadata (local.get $made) (i32.load (i32.const 228)) (i32.load (i32.const 232)))))
    (call $topic (local.get $message) (i32.const 224))
    (call $add-metadata (local.get $made) (i32.const 104) (i32.const 4)
      (i32.load (i32.const 228)) (i32.load (i32.const 232)))
    (local.get $made))
  (func $deliver (param $client i32) (param $message i32)
    (call $send (local.get $client) (i32.const 96) (i32.const 3) (local.get $message) (i32.const 240))
    (call $drop-client (local.get $client)))
  (func (export "wasi:messaging/incoming-handler@0.2.0-draft#handle") (param $message i32) (result i32)
    (local $letter i32) (local $client i32) (local $options i32)
    (call $data (local.get $message) (i32.const 208))
    (local.set $letter (i32.load8_u (i32.load (i32.const 208))))
    (if (i32.eq (local.get $letter) (i32.const 0x74)) (then unreachable)) ;; t
    (if (i32.eq (local.get $letter) (i32.const 0x66)) (then ;; f
      (call $set-data (local.get $message) (i32.const 64) (i32.const 3))
      (call $set-content-type (local.get $message) (i32.const 96) (i32.const 3))
      (call $remove-metadata (local.get $message) (i32.const 128) (i32.const 4))
      (call $deliver (call $client) (local.get $message))
      (return (i32.const 240))))
    (if (i32.eq (local.get $letter) (i32.const 0x73)) (then ;; s
      (call $deliver (call $client) (call $copy (local.get $message)))))
    (if (i32.eq (local.get $letter) (i32.const 0x64)) (then ;; d
      (local.set $client (call $client))
      (call $disconnect (local.get $client) (i32.const 224))
      (call $deliver (local.get $client) (call $copy (local.get $message)))))
    (if (i32.eq (local.get $letter) (i32.const 0x71)) (then ;; q
      (local.set $options (call $options))
      (call $set-timeout (local.get $options) (i32.const 10))
      (call $request (call $client) (i32.const 96) (i32.const 3) (local.get $message)
        (i32.const 1) (local.get $options) (i32.const 240))))
    (if (i32.eq (local.get $letter) (i32.const 0x72)) (then ;; r
      (call $reply (local.get $message) (call $new (i32.const 64) (i32.const 3)) (i32.const 240))))
    (call $drop-message (local.get $message))
    (select (i32.const 32) (i32.const 240) (; e ;) (i32.eq (local.get $letter) (i32.const 0x65)))))
