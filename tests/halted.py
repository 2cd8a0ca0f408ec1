# SPDX-License-Identifier: Apache-2.0
"""Work in another process that stops in one call of a port, until the test lets it continue or kills it."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

from tests.hosts import SimulatedHost, open_sim_host
from vgpuctl.value import replace


class Halting:
    """A port that signals when its method `call` is used, and waits for a signal to continue."""

    def __init__(self, real: Any, call: str, reached: int, resume: int) -> None:
        self.real, self.call, self.reached, self.resume = real, call, reached, resume

    def __getattr__(self, name: str) -> Any:
        if name == self.call:
            os.write(self.reached, b"x")
            os.read(self.resume, 1)
        return getattr(self.real, name)


class Halted:
    """Work in a child process that waits in a call of a port."""

    def __init__(self, host: SimulatedHost, port: str, call: str, work: Callable[[Any], object]) -> None:
        reached, resume = os.pipe(), os.pipe()
        self._resume = resume[1]
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.close(resume[1])
                ports = reopen(host).ports  # the child opens its own locks, so its death releases them
                halting = Halting(getattr(ports, port), call, reached[1], resume[0])
                work(replace(ports, **{port: halting}))
                status = 0
            except BaseException:  # noqa: BLE001 - no exception may leave the child
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(resume[0])
        os.close(reached[1])
        assert os.read(reached[0], 1) == b"x", "the work ended without that call"
        os.close(reached[0])

    def finish(self) -> int:
        """Let the child continue, and return its wait status."""
        os.close(self._resume)
        return os.waitpid(self.pid, 0)[1]

    def die(self) -> None:
        """Kill the child while it waits in that call."""
        os.kill(self.pid, signal.SIGKILL)
        self.finish()


def elsewhere(work: Callable[[], object]) -> None:
    """Run `work` in a process that ends afterwards, like a command."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - no exception may leave the child
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def reopen(host: SimulatedHost) -> SimulatedHost:
    """Return the same host, opened as a concurrent process would."""
    return open_sim_host(host.directory, host.scenario)
