;; Calls a function that no host has.
(module
  (import "env" "telepathy" (func $telepathy))
  (memory (export "memory") 1)
  (func (export "_start") (call $telepathy)))
