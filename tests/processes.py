# SPDX-License-Identifier: Apache-2.0
"""Processes for tests that kill them or let them race."""

from __future__ import annotations

import multiprocessing
import pkgutil
from multiprocessing.context import BaseContext

import vgpuctl

BESIDE = ("pytest", "tests.faults", "tests.lent", "tests.mixed_sizes", "tests.hosts")


def clean() -> BaseContext:
    """Return a context that forks from a server with the whole program loaded and no threads: kills are then harmless.

    Without preloading, each of a thousand processes would import the program again, which takes longer than its work.
    """
    modules = (module.name for module in pkgutil.walk_packages(vgpuctl.__path__, "vgpuctl."))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*BESIDE, *(name for name in modules if not name.endswith("__main__"))])
    return context
