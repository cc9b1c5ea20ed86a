;; By wasmcloud:messaging, returns an error of 5 MiB.
;; world: export wasmcloud:messaging/handler@0.2.0;
(module
  (memory (export "memory") 160)
  (global $heap (mut i32) (i32.const 4096))
  (func (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32)
    (global.get $heap)
    (global.set $heap (i32.and (i32.add (i32.add (global.get $heap) (local.get $size)) (i32.const 7)) (i32.const -8))))
  (data (i32.const 16) "\01\00\00\00" "\00\00\10\00" "\00\00\50\00") ;; err(1 MiB, 5 MiB)
  (func (export "wasmcloud:messaging/handler@0.2.0#handle-message") (param i32 i32 i32 i32 i32 i32 i32) (result i32)
    (memory.fill (i32.const 0x100000) (i32.const 0x78) (i32.const 0x500000))
    (i32.const 16)))
