# SPDX-License-Identifier: Apache-2.0
"""Processes for tests that kill them or let them race."""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
import signal
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path

import vgpuctl

PRELOADED = ("pytest", "tests.faults", "tests.reserving_vms", "tests.mixed_sizes", "tests.hosts")


def clean() -> BaseContext:
    """Return a forkserver context. Its server has loaded the whole program and has no threads, so kills are harmless.

    Without preloading, each of a thousand processes would import the program again, which takes longer than its work.
    """
    modules = (module.name for module in pkgutil.walk_packages(vgpuctl.__path__, "vgpuctl."))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *(name for name in modules if not name.endswith("__main__"))])
    return context


def left_by_a_killed_process(write: Callable[[], object]) -> None:
    """Kill a process just before it renames the file that it wrote."""
    child = os.fork()
    if not child:
        name_operation = os.rename

        def die(source: str, target: str) -> None:
            if Path(target).parent.name == "operations":
                name_operation(source, target)
            else:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = os.rename = os.link = die  # type: ignore[assignment]
        try:
            write()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
