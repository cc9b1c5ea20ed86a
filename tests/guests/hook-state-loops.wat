;; state-changed loops for ever when the consumer starts to process.
;; world: export hostler:consumer/state-changed@0.1.0;
(module
  (func (export "hostler:consumer/state-changed@0.1.0#state-changed") (param $from i32) (param $to i32)
    (if (i32.eq (local.get $to) (i32.const 3)) (then (loop (br 0))))))
