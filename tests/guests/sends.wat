;; Sends its body to the channel that the body names; acks, or returns the text of the error.
(module
  (import "hostler:consumer/producer@0.1.0" "send" (func $send (param $arguments i32) (param $result i32)))
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i64.store (i32.const 128) (i64.load offset=16 (local.get 0)))
    (i64.store (i32.const 136) (i64.load offset=16 (local.get 0)))
    (call $send (i32.const 128) (i32.const 256)) ;; with options that are all zeroes: none
    (if (i32.load8_u (i32.const 256)) (then
      (i32.store8 (i32.const 16) (i32.const 1)) ;; err(
      (i64.store (i32.const 20) (i64.load (i32.const 264)))))
    (i32.const 16)))
