"""TCP from Python: the attribute `do` names the client, and the body the server, as `host:port`."""
import socket
import sys
import types

import redis  # does without `ssl`, which Python lacks here

import hostler

# pg8000 imports names of `ssl` that it uses only over TLS.
sys.modules["ssl"] = types.SimpleNamespace(SSLObject=type(None), SSLSocket=type(None))

import pg8000.native  # noqa: E402


def echo(host: str, port: int) -> bytes:
    with socket.create_connection((host, port)) as stream:
        stream.sendall(b"hello")
        stream.shutdown(socket.SHUT_WR)
        return stream.makefile("rb").read()


def ask_postgres(host: str, port: int) -> str:
    with pg8000.native.Connection("postgres", host=host, port=port, database="postgres", ssl_context=False) as connection:
        connection.run("CREATE TABLE IF NOT EXISTS asked (number int)")
        connection.run("INSERT INTO asked VALUES (:number)", number=6)
        [[product, length]] = connection.run(
            "SELECT number * :by, length(repeat('x', 1000000)) FROM asked", by=7)
        return f"{product} {length}"


def ask_redis(host: str, port: int) -> str:
    with redis.Redis(host, port) as client:
        client.set("number", 6)
        with client.pipeline() as pipeline:
            product = pipeline.incrby("number", 36).execute()[0]
        client.set("large", b"x" * 1_000_000)
        return f"{product} {len(client.get('large'))}"


CLIENTS = {"echo": echo, "postgres": ask_postgres, "redis": ask_redis}


@hostler.handler
def handle(message: hostler.Message):
    host, port = message.text.rsplit(":", 1)
    return CLIENTS[message.attributes["do"]](host, int(port))
