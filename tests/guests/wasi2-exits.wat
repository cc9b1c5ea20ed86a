;; A WASI 0.2 command that exits with success before its end.
;; world: export wasi:cli/run@0.2.0;
;; world: import wasi:cli/exit@0.2.0;
(module
  (import "wasi:cli/exit@0.2.0" "exit" (func $exit (param i32)))
  (func (export "wasi:cli/run@0.2.0#run") (result i32)
    (call $exit (i32.const 0))
    (i32.const 1)))
