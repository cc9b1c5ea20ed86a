import json
import unittest
from pathlib import Path
from unittest import mock

import hostler
from fan_out import split

BODY = Path(__file__).with_name("order.json").read_bytes()
ORDER = hostler.Message(BODY, id="0198")


class Queue:
    """A queue that drops what it has taken before, and fails at some calls."""

    def __init__(self, fails=()):
        self.fails, self.calls, self.sent = set(fails), 0, {}

    def send(self, channel, body, attributes, *, routing_key, group_id, dedupe_key):
        self.calls += 1
        if self.calls in self.fails:
            raise hostler.SendError("unavailable", "not this time")
        self.sent.setdefault(dedupe_key, (channel, routing_key, group_id, attributes, json.loads(body)))
        return dedupe_key


class FanOut(unittest.TestCase):
    def split(self, queue, message=ORDER):
        with mock.patch("hostler.send", queue.send):
            return split(message)

    def test_each_line_becomes_a_message(self):
        queue = Queue()
        self.assertEqual(json.loads(self.split(queue)), {"order": "A-1017", "lines": 3})
        self.assertEqual(list(queue.sent), ["0198-1", "0198-2", "0198-3"])
        channel, routing_key, group, attributes, body = queue.sent["0198-2"]
        self.assertEqual((channel, routing_key, group), ("lines", "zurich", "A-1017"))
        self.assertEqual(attributes, {"content-type": "application/json", "order": "A-1017", "line": "2/3"})
        self.assertEqual(body, {"order": "A-1017", "line": 2, "sku": "desk-1", "quantity": 1, "warehouse": "zurich"})

    def test_another_attempt_doubles_nothing(self):
        queue = Queue(fails=[3])
        with self.assertRaises(hostler.SendError):
            self.split(queue)
        self.assertEqual(len(queue.sent), 2)
        self.split(queue)
        self.assertEqual((queue.calls, len(queue.sent)), (6, 3))

    def test_stops_when_the_host_drains(self):
        queue = Queue()
        with mock.patch("hostler.should_stop", side_effect=[False, True]), self.assertRaises(hostler.Retry):
            self.split(queue)
        self.assertEqual(len(queue.sent), 1)

    def test_a_bad_order_sends_nothing(self):
        good = json.loads(BODY)
        bad_lines = [[], {}, [1], [{"sku": "a", "warehouse": "basel"}], good["lines"] + [{"sku": "a", "quantity": True, "warehouse": "b"}]]
        bad = [b"order", b"[]", b"{}", *({**good, "lines": lines} for lines in bad_lines), {**good, "order": "x" * 51}]
        for body in bad:
            queue = Queue()
            with self.subTest(body), self.assertRaises(hostler.DeadLetter):
                self.split(queue, hostler.Message(body if isinstance(body, bytes) else json.dumps(body).encode()))
            self.assertEqual(queue.calls, 0)


if __name__ == "__main__":
    unittest.main()
