"""A real S3 server (moto) on this machine, behind a proxy that injects network faults."""

from __future__ import annotations

import email.utils
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from moto.server import ThreadedMotoServer


@dataclass(frozen=True)
class Request:
    """What a client requested."""

    method: str
    path: str
    span: str | None


@dataclass
class Fault:
    """What the proxy does with some requests instead of passing them on.

    Attributes:
        when: predicate on requests.
        times: number of requests that fail; later ones pass.
        status: status code of the answer, if not 0.
        code: error code in the body of the answer.
        headers: headers of the answer.
        cut_after: close the connection after this many bytes of the body.
    """

    when: Callable[[Request], bool]
    times: int = 1_000_000
    status: int = 0
    code: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None


class Proxy(ThreadingHTTPServer):
    """Pass requests on to a server.

    Attributes:
        requests: all requests, in order.
        latency_s: delay before each answer.
        faults: the first matching one is applied.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, server_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server = server_port
        self.reset()

    def reset(self) -> None:
        self.requests: list[Request] = []
        self.latency_s = 0.0
        self.faults: list[Fault] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def empty(self, bucket: str) -> None:
        """Create a bucket, or empty it."""
        from moto.core.models import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        backend.reset()
        backend.create_bucket(bucket, "us-east-1")

    def fault_of(self, request: Request) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times > 0 and fault.when(request):
                    fault.times -= 1
                    return fault
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def _answer(self) -> None:
        request = Request(self.command, self.path, self.headers.get("Range"))
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(self.server.latency_s)
        fault = self.server.fault_of(request)
        if fault is not None and fault.status:
            text = f"<Error><Code>{fault.code}</Code><Message>no</Message></Error>".encode()
            given = {"Date": email.utils.formatdate(usegmt=True), **fault.headers}
            self._send(fault.status, given, b"" if self.command == "HEAD" else text)
            return
        there = http.client.HTTPConnection("127.0.0.1", self.server.server, timeout=30)
        there.request(self.command, self.path, body=sent, headers=dict(self.headers))
        answer = there.getresponse()
        body = answer.read()
        there.close()
        headers = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in ("connection", "transfer-encoding", "server")
        }
        self._send(answer.status, headers, body, fault.cut_after if fault else None)

    def _send(
        self, status: int, headers: dict[str, str], body: bytes, cut_after: int | None = None
    ) -> None:
        self.send_response_only(status)
        if not any(name.lower() == "content-length" for name in headers):
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if cut_after is not None:
            self.wfile.write(body[:cut_after])
            self.wfile.flush()
            self.close_connection = True
            return
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def running_server() -> Iterator[Proxy]:
    """Run a server within the block, and return its proxy."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    proxy = Proxy(port)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
        server.stop()


def environment_of(server: Proxy, *, secret: str) -> dict[str, str]:
    """Return environment variables for AWS tools to find a server, without local settings."""
    return {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "AKIAcanary",
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }
