;; A WASI 0.2 command that fails.
;; world: export wasi:cli/run@0.2.0;
(module
  (func (export "wasi:cli/run@0.2.0#run") (result i32)
    (i32.const 1)))
