;; Hooks apart that write to standard error: `start` before the handler, `end` and the outcome after it.
;; world: export hostler:consumer/message-start@0.1.0;
;; world: export hostler:consumer/message-end@0.1.0;
;; world: import wasi:cli/stderr@0.2.0;
(module
  (import "wasi:cli/stderr@0.2.0" "get-stderr" (func $stderr (result i32)))
  (import "wasi:io/streams@0.2.0" "[method]output-stream.blocking-write-and-flush"
    (func $write (param i32 i32 i32 i32)))
  (data (i32.const 16) "start\n" "end ") ;; the newline is at 21, `end ` at 22; at 32 is ok
  (func $say (param $at i32) (param $length i32)
    (call $write (call $stderr) (local.get $at) (local.get $length) (i32.const 128)))
  (func (export "hostler:consumer/message-start@0.1.0#message-start") (param i32) (result i32)
    (call $say (i32.const 16) (i32.const 6))
    (i32.const 32))
  (func (export "hostler:consumer/message-end@0.1.0#message-end")
    (param i32 i32 i32) (param $outcome i32) (param $length i32) (param i32 i32 i32 i64)
    (call $say (i32.const 22) (i32.const 4))
    (call $say (local.get $outcome) (local.get $length))
    (call $say (i32.const 21) (i32.const 1))))
