;; Reports a progress of 0.5, `half`, and works until it is stopped; traps if it may not report.
(module
  (import "hostler:consumer/jobs@0.1.0" "progress"
    (func $progress (param $fraction f64) (param $text i32) (param $length i32) (param $result i32)))
  (import "hostler:consumer/context@0.1.0" "should-stop" (func $should-stop (result i32)))
  (data (i32.const 20) "\02") ;; ok(retry)
  (data (i32.const 48) "half")
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (call $progress (f64.const 0.5) (i32.const 48) (i32.const 4) (i32.const 256))
    (if (i32.load8_u (i32.const 256)) (then (unreachable)))
    (loop $more (br_if $more (i32.eqz (call $should-stop))))
    (i32.const 16)))
