import unittest

import hostler
from app import greet


class Greet(unittest.TestCase):
    def test_greets_by_name(self):
        self.assertEqual(greet(hostler.Message(b'{"name": "Ada"}')), "Hello, Ada!")

    def test_dead_letters_what_has_no_name(self):
        for body in [b"hello", b"[1]", b"{}", b'{"name": 1}', b"\xff"]:
            with self.subTest(body), self.assertRaises(hostler.DeadLetter):
                greet(hostler.Message(body))


if __name__ == "__main__":
    unittest.main()
