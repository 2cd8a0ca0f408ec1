# SPDX-License-Identifier: Apache-2.0
"""The threads in which people sign in: their own, so that slow servers are in nobody else's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from vgpuctl.errors import Busy

THREADS, MOST_WAITING = 6, 60
Answer = TypeVar("Answer")


class SignInThreads:
    """Runs a few sign-ins at a time, lets some wait, and refuses the others until later."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sign-in")
        self._count = 0

    async def run(self, act: Callable[[], Answer]) -> Answer:
        """Return what is done in a thread.

        Raises:
            Busy: too many wait already.
        """
        if self._count >= THREADS + MOST_WAITING:
            raise Busy("too many people sign in at once", hint="try again in a minute")
        self._count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, act)
        finally:
            self._count -= 1

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
