;; A core module that exports no `_start`.
(module
  (func (export "main")))
