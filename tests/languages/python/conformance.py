"""The conformance guest in Python: the text attribute `do` says what to do."""
import json
import os
import socket
import sys

import hostler

current = None  # the `do` of the message, for message_end: the hooks of one message share an instance


def log(text: str) -> None:
    print(text, file=sys.stderr)


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


@hostler.message_start
def start(message: hostler.Message) -> None:
    global current
    current = message.attributes.get("do")
    if current == "hooks":
        log("start")


@hostler.message_end
def end(report: hostler.Report) -> None:
    if current == "hooks":
        log(f"end {report.outcome}")


@hostler.handler
def handle(message: hostler.Message):
    do = message.attributes.get("do")
    if do == "ack":
        return None
    if do == "reply":
        return message.body
    if do == "retry":
        raise hostler.Retry
    if do == "delay":
        raise hostler.Delay(int(message.text))
    if do == "dead-letter":
        raise hostler.DeadLetter(message.text)
    if do == "error":
        raise Exception(message.text)
    if do == "trap":
        os.abort()
    if do == "loop":
        while True:
            pass
    if do == "length":
        return str(len(message.body))
    if do == "attributes":
        return compact({name: value for name, value in message.attributes.items() if isinstance(value, str)})
    if do == "context":
        return compact({"attempt": message.attempt, "remaining": hostler.remaining() > 0, "stop": hostler.should_stop()})
    if do == "connect":
        host, port = message.text.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as stream:
            stream.sendall(b"hello")
            stream.shutdown(socket.SHUT_WR)
            return stream.makefile("rb").read()
    if do == "job":
        try:
            hostler.add_items("child", [hostler.Item(1, dedupe_key="one")])
            return "added"
        except hostler.JobError as error:
            return error.kind if hostler.current_job() is None else "current"
    if do == "hooks":
        log("handle")
        return None
    raise ValueError(f"nothing to do: {do}")
