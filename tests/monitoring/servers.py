# SPDX-License-Identifier: Apache-2.0
"""Real programs on loopback: they choose a free port, say that they are ready, and end with the test."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

PROGRAMS = Path(__file__).resolve().parents[2] / ".venv-prometheus/usr/bin"
"""Prometheus' programs, where tests/bootstrap.py unpacked them."""
DEADLINE_SECONDS = 60
Answer = TypeVar("Answer")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(url: str, body: object = None, **query: str) -> Any:
    """Return the JSON of an answer; without a body the request is a GET."""
    data = None if body is None else json.dumps(body).encode()
    full = f"{url}?{urllib.parse.urlencode(query)}" if query else url
    request = urllib.request.Request(full, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text.startswith((b"{", b"[")) else text.decode()


def wait_for(what: str, check: Callable[[], Answer | None]) -> Answer:
    """Return what a check returns as soon as that is true."""
    pause, end = threading.Event(), time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        try:
            if answer := check():
                return answer
        except (urllib.error.URLError, ConnectionError):
            pass
        pause.wait(0.1)
    raise AssertionError(f"{what}: not within {DEADLINE_SECONDS} s")


@contextmanager
def running(directory: Path, argv: Sequence[str], ready_url: str) -> Iterator[None]:
    """Run one of PROGRAMS until the end of the block; its output goes to the file `log` in the directory."""
    log = directory / "log"
    with (
        log.open("w") as output,
        subprocess.Popen([PROGRAMS / argv[0], *argv[1:]], cwd=directory, stdout=output, stderr=output) as process,
    ):
        try:

            def is_ready() -> bool:
                assert process.poll() is None, log.read_text()
                ask(ready_url)
                return True

            wait_for(argv[0], is_ready)
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def serving(text: Callable[[], str]) -> Iterator[int]:
    """Serve a text on loopback, and yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
