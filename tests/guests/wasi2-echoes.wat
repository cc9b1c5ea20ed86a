;; A WASI 0.2 command that writes its standard input to its standard output.
;; world: export wasi:cli/run@0.2.0;
;; world: import wasi:cli/stdin@0.2.0;
;; world: import wasi:cli/stdout@0.2.0;
(module
  (import "wasi:cli/stdin@0.2.0" "get-stdin" (func $stdin (result i32)))
  (import "wasi:cli/stdout@0.2.0" "get-stdout" (func $stdout (result i32)))
  (import "wasi:io/streams@0.2.0" "[method]input-stream.blocking-read" (func $read (param i32 i64 i32)))
  (import "wasi:io/streams@0.2.0" "[method]output-stream.blocking-write-and-flush"
    (func $write (param i32 i32 i32 i32)))
  (func (export "wasi:cli/run@0.2.0#run") (result i32)
    (local $in i32) (local $out i32)
    (local.set $in (call $stdin))
    (local.set $out (call $stdout))
    (loop $more
      (call $read (local.get $in) (i64.const 4096) (i32.const 16))
      (if (i32.load8_u (i32.const 16)) (then (return (i32.const 0)))) ;; the end
      (call $write (local.get $out) (i32.load (i32.const 20)) (i32.load (i32.const 24)) (i32.const 32))
      (br $more))
    (unreachable)))
