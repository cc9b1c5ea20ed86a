;; Seals the child of type `child`, and acks; or returns the text of the error.
(module
  (import "hostler:consumer/jobs@0.1.0" "seal" (func $seal (param $job i32) (param $length i32) (param $result i32)))
  (data (i32.const 48) "child")
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (call $seal (i32.const 48) (i32.const 5) (i32.const 256))
    (if (i32.load8_u (i32.const 256)) (then
      (i32.store8 (i32.const 16) (i32.const 1)) ;; err(
      (i64.store (i32.const 20) (i64.load (i32.const 264)))))
    (i32.const 16)))
