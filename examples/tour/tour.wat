;; The tour's handler: a preview-1 command, written by hand so that it needs no compiler.
;; The first letter of the body decides the outcome of the message:
;;   r  fails for now: exit 75, which asks for a retry
;;   b  is bad input: exit 65 and a word on standard error, which dead-letters
;;   l  loops forever, until the processing timeout stops it
;;   anything else is done: exit 0
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1)

  (data (i32.const 16) "this order has no customer\0a")
  (data (i32.const 64) "order is done\0a")

  (func $say (param $stream i32) (param $text i32) (param $length i32)
    (i32.store (i32.const 0) (local.get $text))
    (i32.store (i32.const 4) (local.get $length))
    (drop (call $write (local.get $stream) (i32.const 0) (i32.const 1) (i32.const 8))))

  (func (export "_start") (local $letter i32)
    ;; Standard input is the body; its first byte goes to address 128.
    (i32.store (i32.const 0) (i32.const 128))
    (i32.store (i32.const 4) (i32.const 1))
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (local.set $letter (i32.load8_u (i32.const 128)))

    (if (i32.eq (local.get $letter) (i32.const 0x72)) ;; r
      (then (call $exit (i32.const 75))))
    (if (i32.eq (local.get $letter) (i32.const 0x62)) ;; b
      (then
        (call $say (i32.const 2) (i32.const 16) (i32.const 27))
        (call $exit (i32.const 65))))
    (if (i32.eq (local.get $letter) (i32.const 0x6c)) ;; l
      (then (loop $for_ever (br $for_ever))))
    (call $say (i32.const 1) (i32.const 64) (i32.const 14))))
