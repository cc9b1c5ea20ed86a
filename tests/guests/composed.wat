;; A WASI 0.2 command of two components: one passes a text to the other, which has a memory of its own.
(component
  (component $listens
    (core module $code
      (memory (export "memory") 1)
      (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
      (func (export "hear") (param i32 i32)))
    (core instance $code (instantiate $code))
    (func (export "hear") (param "text" string)
      (canon lift (core func $code "hear") (memory $code "memory") (realloc (func $code "realloc")))))
  (component $tells
    (import "hear" (func $hear (param "text" string)))
    (core module $memory (memory (export "memory") 1) (data (i32.const 0) "hello"))
    (core instance $memory (instantiate $memory))
    (core func $hear (canon lower (func $hear) (memory $memory "memory")))
    (core module $code
      (import "listens" "hear" (func $hear (param i32 i32)))
      (func (export "run") (result i32) (call $hear (i32.const 0) (i32.const 5)) (i32.const 0)))
    (core instance $code (instantiate $code (with "listens" (instance (export "hear" (func $hear))))))
    (func (export "run") (result (result)) (canon lift (core func $code "run"))))
  (instance $listens (instantiate $listens))
  (instance $tells (instantiate $tells (with "hear" (func $listens "hear"))))
  (instance $run (export "run" (func $tells "run")))
  (export "wasi:cli/run@0.2.0" (instance $run)))
