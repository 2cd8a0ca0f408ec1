# SPDX-License-Identifier: Apache-2.0
"""Work of another process that is stopped in one call of a seam, and goes on or dies when the test says so."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

from tests.worlds import Host, open_host
from vgpuctl.value import replace


class Halting:
    """A seam that says when it is asked for `call`, and goes on when it is told to."""

    def __init__(self, real: Any, call: str, reached: int, told: int) -> None:
        self.real, self.call, self.reached, self.told = real, call, reached, told

    def __getattr__(self, name: str) -> Any:
        if name == self.call:
            os.write(self.reached, b"x")
            os.read(self.told, 1)
        return getattr(self.real, name)


class Halted:
    """Work in a child that has come to a call of a seam and stays there."""

    def __init__(self, host: Host, seam: str, call: str, work: Callable[[Any], object]) -> None:
        reached, told = os.pipe(), os.pipe()
        self._told = told[1]
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.close(told[1])
                world = beside(host).world  # its own locks: one that it dies with is held by nobody then
                halting = Halting(getattr(world, seam), call, reached[1], told[0])
                work(replace(world, **{seam: halting}))
                status = 0
            except BaseException:  # noqa: BLE001 - nothing may leave the child
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(told[0])
        os.close(reached[1])
        assert os.read(reached[0], 1) == b"x", "the work ended without that call"
        os.close(reached[0])

    def finish(self) -> int:
        """Let it go on, and return how it ended."""
        os.close(self._told)
        return os.waitpid(self.pid, 0)[1]

    def die(self) -> None:
        """Kill it where it is."""
        os.kill(self.pid, signal.SIGKILL)
        self.finish()


def elsewhere(work: Callable[[], object]) -> None:
    """Do it in a process that is gone afterwards, as a command is."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - nothing may leave the child
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def beside(host: Host) -> Host:
    """Return the same host, opened by another process of the same time."""
    return open_host(host.directory, host.scenario)
