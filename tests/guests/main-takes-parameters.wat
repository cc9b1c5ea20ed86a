;; A command whose `_start` takes what no host gives it.
(module
  (memory (export "memory") 1)
  (func (export "_start") (param i32 i32)))
