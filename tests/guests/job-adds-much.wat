;; Adds items to the child of type `child`, one by one, until it may add no more; then returns the text of the error.
(module
  (import "hostler:consumer/jobs@0.1.0" "add-items"
    (func $add-items (param $target i32) (param $length i32) (param $items i32) (param $count i32) (param $result i32)))
  (data (i32.const 16) "\01") ;; err(
  (data (i32.const 48) "child")
  (data (i32.const 56) "0")
  (data (i32.const 128) "\38\00\00\00" "\01") ;; payload (56, 1)
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (loop $more
      (call $add-items (i32.const 48) (i32.const 5) (i32.const 128) (i32.const 1) (i32.const 256))
      (br_if $more (i32.eqz (i32.load8_u (i32.const 256)))))
    (i64.store (i32.const 20) (i64.load (i32.const 264)))
    (i32.const 16)))
