# SPDX-License-Identifier: Apache-2.0
"""Sends images to hosts, two at a time, each by a process of its own: encryption would hold up the hosts' loops."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import vgpuctl
from vgpuctl.controller.hosts.image_child import SendJob
from vgpuctl.errors import VgpuctlError
from vgpuctl.host.commands import run_watched
from vgpuctl.library.remote_errors import error_of
from vgpuctl.model.documents import read_failure, to_json_value

MAX_COPIES = 2
_MODULE = "vgpuctl.controller.hosts.image_child"

OnEnd = Callable[[VgpuctlError | None], None]


class _Stopped(Exception):
    """The controller stops."""


class ImageSender:
    """What sends images; the threads of all hosts share it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_COPIES, thread_name_prefix="send-image")
        self._jobs: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def begin(self, job: SendJob, on_end: OnEnd) -> None:
        """Send an image when it is its turn, unless that is begun already; `on_end` gets why it failed."""
        key = (job.host, job.request.path)
        with self._lock:
            if key in self._jobs or self._stopping.is_set():
                return
            self._jobs.add(key)

        def run() -> None:
            error: VgpuctlError | None = None
            try:
                error = self._send(job)
            except _Stopped:
                return
            finally:
                with self._lock:
                    self._jobs.discard(key)
            on_end(error)

        self._threads.submit(run)

    def close(self) -> None:
        """End what is being sent; the hosts keep what they have."""
        self._stopping.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _send(self, job: SendJob) -> VgpuctlError | None:
        def report(_: str) -> None:
            if self._stopping.is_set():
                raise _Stopped

        try:
            text = json.dumps(to_json_value(job))
            done = run_watched([sys.executable, "-m", _MODULE, text], report, _environment())
        except OSError as error:
            return VgpuctlError(f"no process can be started that sends the image: {error}", hint="free -m; ulimit -u")
        if done.status == 0:
            return None
        try:
            return error_of(read_failure(json.loads(done.error_line)))
        except (ValueError, TypeError, KeyError):
            return VgpuctlError(f"the process that sends the image ended with {done.status}: {done.error_line[:300]}")


def _environment() -> dict[str, str]:
    """Return an environment in which a child runs this program's code, and no other from its directory."""
    own = str(Path(vgpuctl.__file__).parents[1])
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": own}
