;; Does for each message of a batch what its body begins with: a (ack), e (reply with the body), r (retry), d (done early by an ack, and a retry in the list), t (trap), l (loop), m (the list lacks an answer).
;; world: include hostler:consumer/batch-consumer@0.1.0;
(module
  (import "hostler:consumer/batch@0.1.0" "done" (func $done (param i32 i32 i32 i32 i32) (result i32)))
  (func (export "hostler:consumer/batch-handler@0.1.0#handle-batch") (param $messages i32) (param $count i32) (result i32)
    (local $index i32) (local $message i32) (local $answer i32) (local $word i32)
    (i32.store (i32.const 16) (i32.const 1024))
    (i32.store (i32.const 20) (local.get $count))
    (loop $next
      (if (i32.lt_u (local.get $index) (local.get $count)) (then
        (local.set $message (i32.add (local.get $messages) (i32.mul (local.get $index) (i32.const 80))))
        (local.set $answer (i32.add (i32.const 1024) (i32.mul (local.get $index) (i32.const 16))))
        (local.set $word (i32.load8_u (i32.load offset=16 (local.get $message))))
        (if (i32.eq (local.get $word) (i32.const 0x65)) (then ;; e
          (i32.store8 offset=4 (local.get $answer) (i32.const 1))
          (i64.store offset=8 (local.get $answer) (i64.load offset=16 (local.get $message)))))
        (if (i32.eq (local.get $word) (i32.const 0x72)) (then ;; r
          (i32.store8 offset=4 (local.get $answer) (i32.const 2))))
        (if (i32.eq (local.get $word) (i32.const 0x64)) (then ;; d
          (i32.store8 offset=4 (local.get $answer) (i32.const 2))
          (if (i32.eqz (call $done (local.get $index) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))
            (then unreachable))))
        (if (i32.eq (local.get $word) (i32.const 0x74)) (then unreachable)) ;; t
        (if (i32.eq (local.get $word) (i32.const 0x6c)) (then (loop $ever (br $ever)))) ;; l
        (if (i32.eq (local.get $word) (i32.const 0x6d)) (then ;; m
          (i32.store (i32.const 20) (i32.sub (local.get $count) (i32.const 1)))))
        (local.set $index (i32.add (local.get $index) (i32.const 1)))
        (br $next))))
    (i32.const 16)))
