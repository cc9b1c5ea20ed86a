"""Tests of the handler as a program of this machine, against Python's own csv, json and hashlib.

    python3 -m unittest test.py
"""

import csv
import hashlib
import io
import json
import os
import random
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


class Etl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.program = os.path.join(cls.folder.name, "etl")
        compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror"]
        checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover"]
        source = ["-I", os.path.join(HERE, "../../sdk/c"), "-o", cls.program, os.path.join(HERE, "etl.c")]
        subprocess.run(compiler + checks + source, check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_on(self, body, attributes=None):
        """Exit code, reply, reason, and what is in the folder afterwards."""
        with tempfile.TemporaryDirectory() as out:
            env = {"OUT": out, "MESSAGE_ID": "m-1", "MESSAGE_ATTRIBUTES": json.dumps(attributes or {})}
            env["ASAN_OPTIONS"] = "detect_leaks=0"
            ended = subprocess.run([self.program], input=body, env=env, capture_output=True)
            files = {}
            for name in os.listdir(out):
                with open(os.path.join(out, name), "rb") as file:
                    files[name] = file.read()
        return ended.returncode, ended.stdout.decode(), ended.stderr.decode().strip(), files

    def rows(self, body):
        code, reply, reason, files = self.run_on(body)
        self.assertEqual((code, list(files)), (0, ["m-1.jsonl"]), reason)
        written = files["m-1.jsonl"]
        rows = [json.loads(line) for line in written.decode().split("\n")[:-1]]
        digest = hashlib.sha256(body).hexdigest()
        told = {"file": "m-1.jsonl", "rows": len(rows), "read": len(body), "written": len(written), "sha256": digest}
        self.assertEqual(json.loads(reply), told)
        return rows

    def test_what_csv_may_look_like(self):
        for body, expected in [
            (b"a,b\n1,2\n", [{"a": "1", "b": "2"}]),
            (b"a,b\r\n1,2\r\n", [{"a": "1", "b": "2"}]),
            (b"a,b\n1,2", [{"a": "1", "b": "2"}]),
            (b"\xef\xbb\xbfa,b\n1,2\n", [{"a": "1", "b": "2"}]),
            (b'\xef\xbb\xbf"a",b\n1,2\n', [{"a": "1", "b": "2"}]),
            (b"\n\r\na\n\n1\n\n", [{"a": "1"}]),
            (b'a\n""\n', [{"a": ""}]),
            (b'a,b\n,""\n', [{"a": None, "b": ""}]),
            (b'a\n"1,""2""\r\n3"\n', [{"a": '1,"2"\r\n3'}]),
            (b"a\n\x00\x01\x1f\x7f\\/\t\n", [{"a": "\x00\x01\x1f\x7f\\/\t"}]),
            ("\uff21\n\ufeff\n".encode(), [{"\uff21": "\ufeff"}]),
            ("\ufec0\nx\n".encode(), [{"\ufec0": "x"}]),
            (b"a\n", []),
            (b"a", []),
            (b"a\n 1 \n", [{"a": " 1 "}]),
        ]:
            with self.subTest(body):
                self.assertEqual(self.rows(body), expected)

    def test_reasons_name_row_and_column(self):
        for body, expected in [
            (b"", "the body is empty"),
            (b"\xef\xbb\xbf\n", "the body is empty"),
            (b"a,b\n1,2\n\n3\n", "row 2 (line 4): 1 values for 2 columns"),
            (b"a,b\n1,2,3\n", "row 1 (line 2): 3 values for 2 columns"),
            (b"a,,c\n", "line 1, column 2: it has no name that can be used"),
            (b"a,b\x00c\n", "line 1, column 2: it has no name that can be used"),
            (b"a,b,a\n", "line 1, column 3: `a` is there twice"),
            (b'a,b\n1,x"y\n', "row 1 (line 2), column `b`: a quote within a value that is not quoted"),
            (b'a,b\n"1"x,2\n', "row 1 (line 2), column `a`: text after the quote that ends a value"),
            (b'a,b\n1,"2\n3,4\n', "row 1 (line 2), column `b`: a quoted value is not closed"),
            (b"a,b\n1,2\r3,4\n", "row 1 (line 2), column `b`: a carriage return without a line feed"),
            (b"a,b\n1,2\r", "row 1 (line 2), column `b`: a carriage return without a line feed"),
            (b'a,b\n"x\ny",2\n1,2,"', "row 2 (line 4), column 3: a quoted value is not closed"),
            (b'a,"b', "line 1, column 2: a quoted value is not closed"),
            (b"\xef\xbb", "line 1, column 1: not UTF-8"),
        ]:
            with self.subTest(body):
                code, reply, reason, files = self.run_on(body)
                self.assertEqual((code, reply, reason, files), (65, "", expected, {}))

    def test_utf8_is_what_python_takes_for_it(self):
        pieces = ["é", "€", "🚲", "\ud7ff", "\ue000", "\U0010ffff", "\u0800", "\U00010000"]
        good = [piece.encode() for piece in pieces]
        bad = [b"\x80", b"\xc1\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5", b"\xe2\x82", b"\xff"]
        for piece in good + bad:
            for body in [b"a\n" + piece + b"\n", b"a\n" + piece, piece + b"\n1\n"]:
                with self.subTest(body):
                    code, _, reason, _ = self.run_on(body)
                    self.assertEqual((code, reason.endswith("not UTF-8")), (0, False) if piece in good else (65, True))

    def test_the_checksum_has_to_fit(self):
        body = b"a\n1\n"
        digest = hashlib.sha256(body).hexdigest()
        self.assertEqual(self.run_on(body, {"sha256": digest})[0], 0)
        code, _, reason, files = self.run_on(body, {"sha256": "00"})
        self.assertEqual((code, reason, files), (65, f"the body has the SHA-256 {digest}, the attribute says 00", {}))

    def test_a_second_delivery_replaces_the_first(self):
        with tempfile.TemporaryDirectory() as out:
            for _ in range(2):
                env = {"OUT": out, "MESSAGE_ID": "m-1", "MESSAGE_ATTRIBUTES": "{}"}
                self.assertEqual(subprocess.run([self.program], input=b"a\n1\n", env=env, capture_output=True).returncode, 0)
            self.assertEqual(os.listdir(out), ["m-1.jsonl"])

    def test_a_folder_that_is_not_there_is_no_fault_of_the_message(self):
        env = {"OUT": "/nowhere", "MESSAGE_ID": "m-1", "MESSAGE_ATTRIBUTES": "{}"}
        ended = subprocess.run([self.program], input=b"a\n1\n", env=env, capture_output=True)
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(ended.stderr, b"cannot write /nowhere/m-1.jsonl.part: No such file or directory\n")

    def test_random_tables_read_as_python_reads_them(self):
        chance = random.Random(7)
        alphabet = ['"', ",", "\n", "\r\n", "a", " ", "é", "🚲", "\\", "\t", "\x01", ""]
        for sizes in [(5, 3)] * 60 + [(4000, 7)]:
            columns = 1 + chance.randrange(sizes[1])
            table = [[f"c{i}" for i in range(columns)]]
            for _ in range(chance.randrange(sizes[0])):
                table.append(["".join(chance.choices(alphabet, k=chance.randrange(9))) for _ in range(columns)])
            for end in "\n", "\r\n":
                text = io.StringIO(newline="")
                csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(table)
                expected = [dict(zip(table[0], row)) for row in table[1:]]
                self.assertEqual(self.rows(text.getvalue().encode()), expected)


if __name__ == "__main__":
    unittest.main()
