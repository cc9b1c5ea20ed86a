;; Prints its environment, a line NAME=VALUE each.
(module
  (import "wasi_snapshot_preview1" "environ_sizes_get" (func $sizes (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "environ_get" (func $environ (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\00\10\00\00") ;; from (4096,
  (func (export "_start") (local $at i32)
    (drop (call $sizes (i32.const 8) (i32.const 4)))
    (drop (call $environ (i32.const 16) (i32.const 4096)))
    (loop $lines ;; each entry ends with a zero
      (if (i32.lt_u (local.get $at) (i32.load (i32.const 4))) (then
        (if (i32.eqz (i32.load8_u offset=4096 (local.get $at))) (then
          (i32.store8 offset=4096 (local.get $at) (i32.const 0x0a))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $lines))))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))
