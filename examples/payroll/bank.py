"""A bank, and the receiver of the tree's callback: bank.py FOLDER REFUSED SECONDS. Writes its address to FOLDER/bank.

`POST /checks` takes SECONDS, and pays each check once: a second attempt with the same idempotency key gets the receipt of the first.
One check in ten is refused at first, with Retry-After. Those to the account REFUSED are refused for ever. FOLDER/ledger gets a line
for each attempt. `POST /paid` is the callback, whose signature is checked with $CALLBACK_SECRET. FOLDER/callbacks gets a line for
each.
"""

import hashlib
import hmac
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

folder, refused, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
secret = os.environ["CALLBACK_SECRET"].encode()
lock = threading.Lock()
# Receipts by key, the keys that were seen, and the keys at work by account.
receipts, seen, at_work = {}, set(), {}


def write(name, entry):
    with open(f"{folder}/{name}", "a") as file:
        file.write(json.dumps(entry) + "\n")


def decide(key, account):
    """Returns the outcome of an attempt."""
    if account == refused:
        return "refused"
    if key in receipts:
        return "repeated"
    is_new = key not in seen
    seen.add(key)
    if is_new and len(seen) % 10 == 0:
        return "busy"
    receipts[key] = f"r-{len(receipts) + 1:06}"
    return "paid"


def is_genuine(header, body):
    fields = dict(field.split("=", 1) for field in header.split(","))
    expected = hmac.new(secret, fields["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, fields["v1"]) and abs(time.time() - int(fields["t"])) < 300


class Bank(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/checks":
            self.check(self.headers["idempotency-key"], json.loads(body))
        elif self.path == "/paid":
            genuine = is_genuine(self.headers["hostler-signature"], body)
            write("callbacks", {"event": self.headers["hostler-event-id"], "genuine": genuine, "status": json.loads(body)})
            self.answer(204 if genuine else 403)
        else:
            self.answer(404)

    def check(self, key, check):
        account = check["account"]
        with lock:
            others = [other for other in at_work.setdefault(account, []) if other != key]
            at_work[account].append(key)
        time.sleep(seconds)
        with lock:
            outcome = decide(key, account)
            at_work[account].remove(key)
            write("ledger", {"key": key, "account": account, "cents": check["cents"], "outcome": outcome, "beside": others})
        if outcome in ("paid", "repeated"):
            self.answer(200, json.dumps({"receipt": receipts[key]}).encode())
        else:
            self.answer(503, retry_after="1" if outcome == "busy" else None)

    def answer(self, status, body=b"", retry_after=None):
        self.send_response(status)
        if retry_after:
            self.send_header("Retry-After", retry_after)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


server = Server(("127.0.0.1", 0), Bank)
with open(f"{folder}/bank.new", "w") as file:
    file.write(f"http://127.0.0.1:{server.server_address[1]}")
os.rename(f"{folder}/bank.new", f"{folder}/bank")
server.serve_forever()
