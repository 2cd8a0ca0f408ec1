# SPDX-License-Identifier: Apache-2.0
"""Processes of tests that are killed, or that race each other."""

from __future__ import annotations

import multiprocessing
import pkgutil
from multiprocessing.context import BaseContext

import vgpuctl

BESIDE = ("pytest", "tests.faults", "tests.lent", "tests.mixed_sizes", "tests.worlds")


def clean() -> BaseContext:
    """Return how to fork from a server that has the whole program loaded and no thread: killing such one is harmless.

    Without the program each of a thousand processes would import it anew, which takes longer than what it then does.
    """
    modules = (module.name for module in pkgutil.walk_packages(vgpuctl.__path__, "vgpuctl."))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*BESIDE, *(name for name in modules if not name.endswith("__main__"))])
    return context
