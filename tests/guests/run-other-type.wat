;; Exports wasi:cli/run, whose function is of another type.
;; package: package wasi:cli@0.2.9 { interface run { run: func(arguments: list<string>); } }
;; world: export wasi:cli/run@0.2.9;
(module
  (func (export "wasi:cli/run@0.2.9#run") (param i32 i32)))
