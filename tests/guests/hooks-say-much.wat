;; Gives a reason of 5 MiB: of an error in message-start unless the body is `t`, and of a dead letter in processing-timeout.
;; world: export hostler:consumer/message-start@0.1.0;
;; world: export hostler:consumer/processing-timeout@0.1.0;
(module
  (memory (export "memory") 160)
  (global $heap (mut i32) (i32.const 4096))
  (func (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32)
    (global.get $heap)
    (global.set $heap (i32.and (i32.add (i32.add (global.get $heap) (local.get $size)) (i32.const 7)) (i32.const -8))))
  (data (i32.const 16) "\01\00\00\00" "\00\00\10\00" "\00\00\50\00") ;; err(1 MiB, 5 MiB)
  (data (i32.const 32) "\04\00\00\00" "\00\00\10\00" "\00\00\50\00") ;; dead-letter(1 MiB, 5 MiB)
  (func (export "hostler:consumer/message-start@0.1.0#message-start") (param $message i32) (result i32)
    (if (i32.eq (i32.load8_u (i32.load offset=16 (local.get $message))) (i32.const 0x74)) (then (return (i32.const 64))))
    (memory.fill (i32.const 0x100000) (i32.const 0x78) (i32.const 0x500000))
    (i32.const 16))
  (func (export "hostler:consumer/processing-timeout@0.1.0#processing-timeout") (param i32) (result i32)
    (memory.fill (i32.const 0x100000) (i32.const 0x78) (i32.const 0x500000))
    (i32.const 32)))
