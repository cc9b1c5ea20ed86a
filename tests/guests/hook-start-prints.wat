;; message-start writes `hook` to standard output.
;; world: export hostler:consumer/message-start@0.1.0;
;; world: import wasi:cli/stdout@0.2.0;
(module
  (import "wasi:cli/stdout@0.2.0" "get-stdout" (func $stdout (result i32)))
  (import "wasi:io/streams@0.2.0" "[method]output-stream.blocking-write-and-flush"
    (func $write (param i32 i32 i32 i32)))
  (data (i32.const 16) "hook\n") ;; at 32 is ok
  (func (export "hostler:consumer/message-start@0.1.0#message-start") (param i32) (result i32)
    (call $write (call $stdout) (i32.const 16) (i32.const 5) (i32.const 128))
    (i32.const 32)))
