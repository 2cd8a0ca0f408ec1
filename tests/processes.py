# SPDX-License-Identifier: Apache-2.0
"""Processes for tests that kill them or let them race."""

from __future__ import annotations

import multiprocessing
import pkgutil
from multiprocessing.context import BaseContext

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
