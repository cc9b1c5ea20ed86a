;; Works until the host wants it to stop, then asks for another attempt.
(module
  (import "hostler:consumer/context@0.1.0" "should-stop" (func $should-stop (result i32)))
  (data (i32.const 16) "\00\00\00\00" "\02") ;; ok(retry)
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (loop (br_if 0 (i32.eqz (call $should-stop))))
    (i32.const 16)))
