;; Makes an empty file, named as its body, in the folder that it is granted. A body that begins with `d` it refuses
;; for good.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
  (memory (export "memory") 1)
  ;; 0: an iovec; 8: a count, then a descriptor; 1024: the body

  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 1024))
    (i32.store (i32.const 4) (i32.const 4096))
    (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    (if (i32.eq (i32.load8_u (i32.const 1024)) (i32.const 0x64)) (then (call $proc_exit (i32.const 65))))
    ;; Descriptor 3 is the first granted folder; oflags 1 creates; the right 64 is to write.
    (if
      (call $path_open
        (i32.const 3) (i32.const 0) (i32.const 1024) (i32.load (i32.const 8))
        (i32.const 1) (i64.const 64) (i64.const 0) (i32.const 0) (i32.const 8))
      (then (unreachable)))))
