;; Takes memory until it gets no more, then traps.
(module
  (memory (export "memory") 1)
  (func (export "_start")
    (loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
    (unreachable)))
