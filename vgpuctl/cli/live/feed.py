# SPDX-License-Identifier: Apache-2.0
"""Reads in a thread of its own, so that a slow look at the host never holds up the keys, nor the end of the program."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Thread
from typing import Any, Generic, TypeVar

from vgpuctl.errors import VgpuctlError, explain_exception

Result = TypeVar("Result")


class Feed(Generic[Result]):
    """Makes calls one after the other, and hands their results over in its thread.

    The thread is a daemon: a call that hangs in a driver does not keep the program alive.
    """

    def __init__(self) -> None:
        self._jobs: Queue[Callable[[], None]] = Queue()
        self._is_pending: set[str] = set()

    def start(self) -> None:
        """Begin."""
        Thread(target=self._work, name="top-feed", daemon=True).start()

    def ask(self, name: str, call: Callable[[], Result], deliver: Callable[[Result | VgpuctlError], Any]) -> None:
        """Make a call soon, unless one of that name waits or runs already. `deliver` gets its result or its failure."""
        if name in self._is_pending:
            return
        self._is_pending.add(name)

        def job() -> None:
            answer: Result | VgpuctlError
            try:
                answer = call()
            except Exception as exc:  # noqa: BLE001 - the screen shows whatever fails, and goes on
                error = explain_exception(exc)
                answer = error if isinstance(error, VgpuctlError) else VgpuctlError(f"{type(exc).__name__}: {exc}")
            self._is_pending.discard(name)
            deliver(answer)

        self._jobs.put(job)

    def wait(self) -> None:
        """Wait until every call that was asked for has been made."""
        self._jobs.join()

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            self._jobs.task_done()
