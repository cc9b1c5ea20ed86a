;; By wasi:messaging, makes a message of 1 MiB for each byte of its body, and keeps them all.
;; world: export wasi:messaging/incoming-handler@0.2.0-draft;
;; world: import wasi:messaging/types@0.2.0-draft;
(module
  (import "wasi:messaging/types@0.2.0-draft" "[method]message.data" (func $data (param i32 i32)))
  (import "wasi:messaging/types@0.2.0-draft" "[constructor]message" (func $new (param i32 i32) (result i32)))
  (func (export "wasi:messaging/incoming-handler@0.2.0-draft#handle") (param $message i32) (result i32)
    (local $left i32)
    (drop (memory.grow (i32.const 16)))
    (call $data (local.get $message) (i32.const 16))
    (local.set $left (i32.load (i32.const 20)))
    (loop $more
      (if (local.get $left) (then
        (drop (call $new (i32.const 0) (i32.const 0x100000)))
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (br $more))))
    (i32.const 32)))
