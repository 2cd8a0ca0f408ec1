# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts, vgpuctl itself, and what several hosts answered."""

from __future__ import annotations

from typing import Literal

from vgpuctl.model.results.host import NotRestoredResult, RestoredResult
from vgpuctl.value import Value


class ScenarioResult(Value):
    """A built-in simulated host."""

    host: str
    description: str


class SimResult(Value):
    """A simulated host that was reset."""

    host: str


class RebootedResult(SimResult):
    """A simulated host that was rebooted.

    `boot_unit`: whether the unit of install-host ran, and could create everything again. `restored`: what it created;
    `failed`: what it could not create.
    """

    boot_unit: Literal["done", "failed", "not-enabled"]
    restored: tuple[RestoredResult, ...] = ()
    failed: tuple[NotRestoredResult, ...] = ()


class CompletionResult(Value):
    """A shell's completion script."""

    shell: str
    script: str


class HostAnswerResult(Value):
    """One host. `document`: what vgpuctl there printed; if it printed none, an error document of the same form."""

    host: str
    address: str
    exit_status: int
    seconds: float
    document: object


class HostsResult(Value):
    """Every selected host, in the order of the command line, including those that failed."""

    command: str
    hosts: tuple[HostAnswerResult, ...]
