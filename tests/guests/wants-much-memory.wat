;; Wants 256 MiB from the start.
(module
  (memory (export "memory") 4096)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (i32.const 4096))
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i32.const 16)))
