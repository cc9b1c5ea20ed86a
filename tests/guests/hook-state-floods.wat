;; state-changed writes `heard`, a blank line and more than is kept of it to standard error, and traps.
;; world: export hostler:consumer/state-changed@0.1.0;
;; world: import wasi:cli/stderr@0.2.0;
(module
  (import "wasi:cli/stderr@0.2.0" "get-stderr" (func $stderr (result i32)))
  (import "wasi:io/streams@0.2.0" "[method]output-stream.blocking-write-and-flush"
    (func $write (param i32 i32 i32 i32)))
  (data (i32.const 16) "heard\n\n")
  (func $say (param $at i32) (param $length i32)
    (call $write (call $stderr) (local.get $at) (local.get $length) (i32.const 128)))
  (func (export "hostler:consumer/state-changed@0.1.0#state-changed") (param i32 i32)
    (call $say (i32.const 16) (i32.const 7))
    (memory.fill (i32.const 4096) (i32.const 0x78) (i32.const 4096))
    (call $say (i32.const 4096) (i32.const 4096))
    (unreachable)))
