;; Handler and hooks in one instance: each step counts, the handler replies with the count, message-end prints the
;; outcome and the count.
;; world: include hostler:consumer/consumer@0.1.0;
;; world: export hostler:consumer/message-start@0.1.0;
;; world: export hostler:consumer/message-end@0.1.0;
;; world: import wasi:cli/stderr@0.2.0;
(module
  (import "wasi:cli/stderr@0.2.0" "get-stderr" (func $stderr (result i32)))
  (import "wasi:io/streams@0.2.0" "[method]output-stream.blocking-write-and-flush"
    (func $write (param i32 i32 i32 i32)))
  (global $steps (mut i32) (i32.const 0x30))
  (data (i32.const 16) "\00\00\00\00" "\01\00\00\00" "\40\00\00\00" "\01") ;; ok(reply(64, 1))
  (func $step
    (global.set $steps (i32.add (global.get $steps) (i32.const 1)))
    (i32.store8 (i32.const 64) (global.get $steps)))
  (func (export "hostler:consumer/message-start@0.1.0#message-start") (param i32) (result i32)
    (call $step)
    (i32.const 32))
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (call $step)
    (i32.const 16))
  (func (export "hostler:consumer/message-end@0.1.0#message-end")
    (param i32 i32 i32) (param $outcome i32) (param $length i32) (param i32 i32 i32 i64)
    (call $step)
    (call $write (call $stderr) (local.get $outcome) (local.get $length) (i32.const 128))
    (call $write (call $stderr) (i32.const 64) (i32.const 1) (i32.const 128))))
