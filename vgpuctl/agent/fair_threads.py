# SPDX-License-Identifier: Apache-2.0
"""Threads for what requests do that may take long, shared among accounts: none can take all of them.

readers = FairThreads(16, "read")
result = await readers.run(caller, act, argument)      # `act(argument)` in a thread, when it is the caller's turn
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from vgpuctl.agent.protocol import TooMany
from vgpuctl.model.caller import Caller, Rights

Result = TypeVar("Result")

TURN_SECONDS = 30.0
"""A request waits at most so long for its turn."""


class FairThreads:
    """Some threads. An account that is not root's has half of them at most, and root's always finds two free ones.

    Its methods are called in the loop's thread.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._changed = asyncio.Condition()
        self._running: Counter[str] = Counter()

    async def run(self, caller: Caller, act: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a function returns, which runs in a thread.

        Raises:
            TooMany: other requests of this account, or of others, took all threads for long.
        """
        async with self._turn(caller):
            return await asyncio.get_running_loop().run_in_executor(self._threads, act, *arguments)

    def close(self) -> None:
        """Begin nothing new; what runs ends by itself."""
        self._threads.shutdown(wait=False)

    @contextlib.asynccontextmanager
    async def _turn(self, caller: Caller) -> AsyncIterator[None]:
        async with self._changed:
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await self._changed.wait_for(lambda: self._has_turn(caller))
            except TimeoutError:
                raise TooMany(
                    f"{self._running[caller.account]} requests of {caller.account} run already, "
                    f"{self._running.total()} of all accounts",
                    hint="try again later, and with fewer requests at once",
                    running=self._running[caller.account],
                ) from None
            self._running[caller.account] += 1
        try:
            yield
        finally:
            async with self._changed:
                self._running[caller.account] -= 1
                if not self._running[caller.account]:
                    del self._running[caller.account]
                self._changed.notify_all()

    def _has_turn(self, caller: Caller) -> bool:
        total = self._running.total()
        if caller.rights is Rights.ROOT:
            return total < self._count
        return total < self._count - 2 and self._running[caller.account] < self._count // 2
