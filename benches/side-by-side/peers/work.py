"""The work on a message, as in work/src/lib.rs. When run as a program, prints the duration of the work in microseconds."""

import json
import sys
import time

ROUNDS = 8


def compute(order):
    value = (sum(order["amounts"]) & 0xFFFFFFFF) ^ 0x811C9DC5
    text = order["text"].encode()
    for _ in range(ROUNDS):
        for byte in text:
            value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    if value != order["check"]:
        raise ValueError(f"order {order['number']} is not what it says")


def work(body):
    compute(json.loads(body))


if __name__ == "__main__":
    turns = 5000
    begin = time.process_time()
    for _ in range(turns):
        work(sys.argv[1])
    print((time.process_time() - begin) / turns * 1e6)
