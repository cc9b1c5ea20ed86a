;; Begins a TCP connection to 127.0.0.1, to the port in the body (2 bytes, little endian); acks, or replies with the
;; number of the error.
;; world: include hostler:consumer/consumer@0.1.0;
;; world: import wasi:sockets/instance-network@0.2.0;
;; world: import wasi:sockets/tcp-create-socket@0.2.0;
(module
  (import "wasi:sockets/instance-network@0.2.0" "instance-network" (func $network (result i32)))
  (import "wasi:sockets/tcp-create-socket@0.2.0" "create-tcp-socket" (func $create (param i32 i32)))
  (import "wasi:sockets/tcp@0.2.0" "[method]tcp-socket.start-connect"
    (func $connect (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
  (data (i32.const 16) "\00\00\00\00" "\01\00\00\00" "\41\00\00\00" "\01") ;; ok(reply(65, 1))
  (func (export "hostler:consumer/handler@0.1.0#handle") (param i32) (result i32)
    (call $create (i32.const 0) (i32.const 32))
    (if (i32.load8_u (i32.const 32)) (then
      (i32.store8 (i32.const 65) (i32.load8_u (i32.const 36)))
      (return (i32.const 16))))
    (call $connect (i32.load (i32.const 36)) (call $network)
      (i32.const 0) (i32.load16_u (i32.load offset=16 (local.get 0)))
      (i32.const 127) (i32.const 0) (i32.const 0) (i32.const 1)
      (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
      (i32.const 64))
    (if (i32.eqz (i32.load8_u (i32.const 64))) (then (i32.store8 (i32.const 20) (i32.const 0)))) ;; ok(ack)
    (i32.const 16)))
