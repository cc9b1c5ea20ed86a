;; By wasmcloud:messaging, does what the first letter of its body says.
;;   a  acks
;;   e  returns an error
;;   t  traps
;;   s  publishes body and reply-to under the subject `out`
;;   r  publishes its body to where the message wants replies; an error if that is nowhere
;;   q  requests an answer
;; world: export wasmcloud:messaging/handler@0.2.0;
;; world: import wasmcloud:messaging/consumer@0.2.0;
(module
  (import "wasmcloud:messaging/consumer@0.2.0" "publish" (func $publish (param i32 i32 i32 i32 i32 i32 i32 i32)))
  (import "wasmcloud:messaging/consumer@0.2.0" "request" (func $request (param i32 i32 i32 i32 i32 i32)))
  (data (i32.const 32) "\01\00\00\00" "\40\00\00\00" "\14") ;; err(64, 20)
  (data (i32.const 48) "\01\00\00\00" "\60\00\00\00" "\08") ;; err(96, 8)
  (data (i32.const 64) "the database is away")
  (data (i32.const 96) "no reply")
  (data (i32.const 112) "out")
  (func (export "wasmcloud:messaging/handler@0.2.0#handle-message")
    (param i32 i32) (param $body i32) (param $length i32) (param $is-some i32) (param $to i32) (param $to-length i32)
    (result i32)
    (local $letter i32)
    (local.set $letter (i32.load8_u (local.get $body)))
    (if (i32.eq (local.get $letter) (i32.const 0x65)) (then (return (i32.const 32)))) ;; e
    (if (i32.eq (local.get $letter) (i32.const 0x74)) (then unreachable)) ;; t
    (if (i32.eq (local.get $letter) (i32.const 0x73)) (then ;; s
      (call $publish (i32.const 112) (i32.const 3) (local.get $body) (local.get $length)
        (local.get $is-some) (local.get $to) (local.get $to-length) (i32.const 240))))
    (if (i32.eq (local.get $letter) (i32.const 0x72)) (then ;; r
      (if (i32.eqz (local.get $is-some)) (then (return (i32.const 48))))
      (call $publish (local.get $to) (local.get $to-length) (local.get $body) (local.get $length)
        (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 240))))
    (if (i32.eq (local.get $letter) (i32.const 0x71)) (then ;; q
      (call $request (i32.const 112) (i32.const 3) (local.get $body) (local.get $length)
        (i32.const 10) (i32.const 240))))
    (i32.const 240)))
