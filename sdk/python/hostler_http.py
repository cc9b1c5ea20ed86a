"""HTTP for hostler handlers: one blocking function. The world must import wasi:http/outgoing-handler. See book/src/languages/python.md."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional
from urllib.parse import urlsplit

try:
    import wit_world
except ImportError:  # not in a component
    http = None
else:
    from componentize_py_types import Err
    from wit_world.imports import outgoing_handler
    from wit_world.imports import wasi_http_types as http
    from wit_world.imports.streams import StreamError_Closed


@dataclass(frozen=True)
class Response:
    """An HTTP response. headers: by name in lower case. If several headers have the same name, contains the last."""

    status: int
    headers: Dict[str, str]
    body: bytes


def fetch(method: str, url: str, headers: Optional[Dict[str, str]] = None, body: bytes = b"", timeout: float = 30) -> Response:
    """Sends a request. Returns the response for any status, and follows no redirects. Raises OSError if no response arrives, for example
    because allow.http does not name the origin. timeout: maximum seconds for connecting, for the start of the response, and between
    any two of its parts."""
    if http is None:
        raise RuntimeError("there is no host to send by: replace hostler_http.fetch in a test")
    parts = urlsplit(url)
    headers = dict(headers or {})
    if not any(name.lower() == "content-length" for name in headers):
        headers["content-length"] = str(len(body))  # without this header, the body is sent in chunks, which some servers refuse
    try:
        request = _request(method, parts, headers)
    except Err:
        raise OSError(f"{url}: its method, a header or the address is refused") from None
    options = http.RequestOptions()
    for limit in (options.set_connect_timeout, options.set_first_byte_timeout, options.set_between_bytes_timeout):
        limit(int(timeout * 1e9))
    sink = request.body()
    try:
        answer = outgoing_handler.handle(request, options)
    except Err as error:
        raise OSError(f"{url}: {type(error.value).__name__}") from None
    try:
        with sink.write() as stream:
            for start in range(0, len(body), 4096):  # maximum size of one write
                stream.blocking_write_and_flush(body[start:start + 4096])
        http.OutgoingBody.finish(sink, None)
    except Err:
        pass  # the response, or its error, states the reason
    with answer.subscribe() as ready:
        ready.block()
    response = answer.get().value.value
    if not isinstance(response, http.IncomingResponse):
        raise OSError(f"{url}: {type(response).__name__}")
    with response.headers() as fields:
        names = {name.lower(): value.decode("latin-1") for name, value in fields.entries()}
    received = b""
    with response.consume() as source, source.stream() as stream:
        try:
            while True:
                received += stream.blocking_read(65536)
        except Err as end:
            if not isinstance(end.value, StreamError_Closed):
                raise OSError(f"{url}: the body broke off") from None
    return Response(response.status(), names, received)


def _request(method: str, parts: Any, headers: Dict[str, str]) -> Any:
    request = http.OutgoingRequest(http.Fields.from_list([(name, value.encode()) for name, value in headers.items()]))
    request.set_method(http.Method_Other(method))
    request.set_scheme(http.Scheme_Https() if parts.scheme == "https" else http.Scheme_Http())
    request.set_authority(parts.netloc)
    request.set_path_with_query((parts.path or "/") + ("?" + parts.query if parts.query else ""))
    return request
