;; Takes memory until it gets no more, then traps.
(module
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
    (unreachable)))
