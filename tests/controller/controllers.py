# SPDX-License-Identifier: Apache-2.0
"""A controller as a process of its own, and the command line of its admin."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema

from vgpuctl.cli import schemas


class Controller:
    """A controller's process, and the command line of its admin.

    `prefix`: the words before its command line; `env`: its environment, by default the tests'.
    """

    def __init__(
        self, directory: Path, port: int, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self._prefix = prefix
        self._env = env
        self.socket = directory / "run" / "controller.sock"
        self.port = port
        self.process: subprocess.Popen[str] | None = None
        self.log = ""
        """What it wrote to stderr after it was ready, once it has ended."""

    def start(self, *words: str) -> None:
        argv = ["controller", "run", "--state", self.directory / "state", "--socket", self.socket, *words]
        self.process = subprocess.Popen(
            [*self._prefix, sys.executable, "-m", "vgpuctl", *map(str, argv)],
            stderr=subprocess.PIPE,
            text=True,
            env=self._env,
        )
        assert self.process.stderr is not None
        assert "runs on" in self.process.stderr.readline()

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        self.log = self.process.communicate(timeout=60)[1]
        return self.process.returncode

    def run(self, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "VGPUCTL_CONTROLLER": str(self.socket), **env}
        argv = [sys.executable, "-m", "vgpuctl", "controller", *words]
        return subprocess.run(
            argv, input=stdin, capture_output=True, text=True, check=False, env=environment, timeout=60
        )

    def data(self, *words: str) -> Any:
        """Return the data of a command's document, which fits its schema."""
        done = self.run(*words, "--json")
        document = json.loads(done.stdout)
        jsonschema.validate(document, schemas.document_schema(f"controller-{words[0]}"))
        assert done.returncode == 0, done.stdout
        return document["data"]

    def request(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        text = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, text, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        is_json = response.headers.get_content_type() == "application/json"
        return response.status, json.loads(content) if is_json else {"text": content.decode()}, response.headers


@contextmanager
def running_controller(directory: Path) -> Iterator[Controller]:
    """Yield a controller that serves its socket, and a port of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    one = Controller(directory, port)
    one.start("--listen", f"127.0.0.1:{port}")
    try:
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            one.stop()
