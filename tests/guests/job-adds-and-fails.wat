;; Adds its body as an item to the child of type `child`, and fails at the first attempt; acks at the next.
(module
  (import "hostler:consumer/jobs@0.1.0" "add-items"
    (func $add-items (param $target i32) (param $length i32) (param $items i32) (param $count i32) (param $result i32)))
  (data (i32.const 48) "child")
  (data (i32.const 56) "failed after adding")
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i64.store (i32.const 128) (i64.load offset=16 (local.get 0)))
    (call $add-items (i32.const 48) (i32.const 5) (i32.const 128) (i32.const 1) (i32.const 256))
    (if (i32.load8_u (i32.const 256)) (then (unreachable)))
    (if (i32.eq (i32.load offset=44 (local.get 0)) (i32.const 1)) (then
      (i32.store8 (i32.const 16) (i32.const 1)) ;; err(
      (i64.store (i32.const 20) (i64.const 0x1300000038)))) ;; (56, 19)
    (i32.const 16)))
