;; Replies with its job's type in quotes; with `null` if the message is not an item of a job.
(module
  (import "hostler:consumer/jobs@0.1.0" "current" (func $current (param $result i32)))
  (data (i32.const 16) "\00\00\00\00" "\01\00\00\00" "\30\00\00\00" "\04") ;; ok(reply(48, 4))
  (data (i32.const 48) "null")
  (data (i32.const 1024) "\22")
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (call $current (i32.const 256))
    (if (i32.load8_u (i32.const 256)) (then
      (memory.copy (i32.const 1025) (i32.load (i32.const 276)) (i32.load (i32.const 280)))
      (i32.store8 (i32.add (i32.const 1025) (i32.load (i32.const 280))) (i32.const 0x22))
      (i32.store (i32.const 24) (i32.const 1024))
      (i32.store (i32.const 28) (i32.add (i32.load (i32.const 280)) (i32.const 2)))))
    (i32.const 16)))
