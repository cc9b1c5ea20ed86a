;; A component that exports nothing.
;; world:
(module)
