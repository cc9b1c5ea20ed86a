;; Grows its table by a page at a time until it is refused, then breaks.
(module
  (memory (export "memory") 1)
  (table $table 1 funcref)
  (func (export "_start")
    (loop $again
      (br_if $again (i32.ne (table.grow $table (ref.null func) (i32.const 1024)) (i32.const -1))))
    (unreachable)))
