"""An OTLP collector for metrics over HTTP and gRPC. Prints its ports, and then each request as a line of JSON.
Given a key and a certificate, accepts gRPC only over TLS."""
import json
import sys
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service


def tell(over, path, headers, request):
    headers = {name.lower(): str(value) for name, value in headers}
    print(json.dumps({"over": over, "path": path, "headers": headers, "request": MessageToDict(request)}), flush=True)


class Http(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        tell("http", self.path, self.headers.items(), metrics.ExportMetricsServiceRequest.FromString(body))
        answer = metrics.ExportMetricsServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Grpc(service.MetricsServiceServicer):
    def Export(self, request, context):
        tell("grpc", "", context.invocation_metadata(), request)
        return metrics.ExportMetricsServiceResponse()


server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
service.add_MetricsServiceServicer_to_server(Grpc(), server)
if len(sys.argv) > 1:
    key, certificate = (open(name, "rb").read() for name in sys.argv[1:])
    over_grpc = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
else:
    over_grpc = server.add_insecure_port("127.0.0.1:0")
server.start()
over_http = ThreadingHTTPServer(("127.0.0.1", 0), Http)
print(json.dumps({"http": over_http.server_port, "grpc": over_grpc}), flush=True)
over_http.serve_forever()
