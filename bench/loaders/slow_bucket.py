"""A read-only S3 bucket on this machine: range requests, each with a delay.

    python -m bench.loaders.slow_bucket FOLDER DELAY_S     prints its port

One multi-threaded process that sends files with `sendfile`, to leave most of the shared cores to
the reader.
"""

from __future__ import annotations

import re
import sys
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Bucket(BaseHTTPRequestHandler):
    """Answer GET and HEAD requests of an object."""

    protocol_version = "HTTP/1.1"
    folder: Path
    delay_s: float

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _answer(self, *, with_body: bool) -> None:
        time.sleep(self.delay_s)
        path = self.folder / unquote(urlparse(self.path).path).lstrip("/")
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = path.stat().st_size
        start, stop = 0, size
        if found := _RANGE.match(self.headers.get("Range", "")):
            start = int(found[1])
            stop = min(size, int(found[2]) + 1) if found[2] else size
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", f'"{path.name}-{size}"')
        self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
        self.send_header("Accept-Ranges", "bytes")
        if found:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        if with_body:
            with path.open("rb") as file:
                self.wfile.flush()
                self.connection.sendfile(file, start, stop - start)


class Server(ThreadingHTTPServer):
    """A server with a thread per connection, which ends with the process."""

    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    Bucket.folder, Bucket.delay_s = Path(sys.argv[1]), float(sys.argv[2])
    server = Server(("127.0.0.1", 0), Bucket)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
