"""Rotel, a third-party OTLP collector, with a receiver that prints every span from the collector as JSON.

Arguments: the addresses on which the collector listens for gRPC and for HTTP. Ends with the process group.
"""
import gzip
import http.server
import json
import os
import pathlib
import subprocess
import sys

import rotel
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def plain(value):
    """Converts the value of an attribute to JSON."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None


def table(attributes):
    return {one.key: plain(one.value) for one in attributes}


def said(span, resource, scope):
    return {
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "name": span.name,
        "kind": Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        "attributes": table(span.attributes),
        "links": [link.span_id.hex() for link in span.links],
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "error": span.status.code == 2,
        "resource": table(resource.attributes),
        "scope": scope.name,
    }


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            for spans in group.scope_spans:
                for span in spans.spans:
                    # Written at once, because other processes print too.
                    sys.stdout.write(json.dumps(said(span, group.resource, spans.scope)) + "\n")
        sys.stdout.flush()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
agent = pathlib.Path(rotel.__file__).with_name("rotel-agent")
options = {
    "otlp-grpc-endpoint": sys.argv[1],
    "otlp-http-endpoint": sys.argv[2],
    "exporter": "otlp",
    "otlp-exporter-protocol": "http",
    "otlp-exporter-endpoint": f"http://127.0.0.1:{server.server_port}",
}
# Rotel is linked with this Python's library, whose folder the loader may not search.
environment = {**os.environ, "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"}
arguments = [f"--{name}={value}" for name, value in options.items()]
subprocess.Popen([agent, "start", "--disable-batching", *arguments], env=environment)
server.serve_forever()
