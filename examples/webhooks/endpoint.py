"""Two webhooks with troubles: endpoint.py PORT_FILE LOG DOWN RATE.

`/counter` answers 503 for the first DOWN seconds. `/archive` takes RATE requests a second, and answers 429 with Retry-After to all
further ones. LOG gets a line for each request: the seconds since the start, the webhook, the number of the view, and the status.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

port_file, log, down, rate = sys.argv[1], open(sys.argv[2], "a", buffering=1), float(sys.argv[3]), int(sys.argv[4])
begun = time.monotonic()
lock = threading.Lock()
# The second that is counted, and the requests in it.
window = [0, 0]


def status_of(webhook, seconds):
    """Returns the status of the response, and the seconds in Retry-After."""
    if webhook == "counter":
        return (503, None) if seconds < down else (204, None)
    if webhook == "archive":
        if window[0] != int(seconds):
            window[:] = [int(seconds), 0]
        window[1] += 1
        return (204, None) if window[1] <= rate else (429, 1)
    return 404, None


class Webhooks(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0)) if "content-length" in self.headers else self.chunks()
        webhook = self.path.strip("/")
        with lock:
            seconds = time.monotonic() - begun
            status, wait = status_of(webhook, seconds)
            log.write(f"{seconds:.3f} {webhook} {json.loads(body)['view']} {status}\n")
        self.send_response(status)
        if wait is not None:
            self.send_header("Retry-After", str(wait))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def chunks(self):
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


server = Server(("127.0.0.1", 0), Webhooks)
with open(port_file + ".new", "w") as file:
    file.write(str(server.server_address[1]))
os.rename(port_file + ".new", port_file)
server.serve_forever()
