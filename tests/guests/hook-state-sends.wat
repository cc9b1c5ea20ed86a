;; state-changed sends the two states, a digit each, to the channel `states`; traps if it cannot.
;; world: import hostler:consumer/producer@0.1.0;
;; world: export hostler:consumer/state-changed@0.1.0;
(module
  (import "hostler:consumer/producer@0.1.0" "send" (func $send (param $arguments i32) (param $result i32)))
  (data (i32.const 64) "states")
  (data (i32.const 128) "\40\00\00\00" "\06\00\00\00" "\50\00\00\00" "\02") ;; channel (64, 6), body (80, 2)
  (func (export "hostler:consumer/state-changed@0.1.0#state-changed") (param $from i32) (param $to i32)
    (i32.store8 (i32.const 80) (i32.add (local.get $from) (i32.const 0x30)))
    (i32.store8 (i32.const 81) (i32.add (local.get $to) (i32.const 0x30)))
    (call $send (i32.const 128) (i32.const 256))
    (if (i32.load8_u (i32.const 256)) (then (unreachable)))))
