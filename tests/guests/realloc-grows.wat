;; Takes memory until it gets no more when the host asks it for room for the message, then traps.
(module
  (memory (export "memory") 1)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
    (unreachable))
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (i32.const 16)))
