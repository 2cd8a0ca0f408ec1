# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts, and vgpuctl itself."""

from __future__ import annotations

from typing import TypedDict


class ScenarioShape(TypedDict):
    """A built-in simulated host."""

    host: str
    description: str


class SimShape(TypedDict):
    """A simulated host that was rebooted or reset."""

    host: str


class CompletionShape(TypedDict):
    """A shell's completion script."""

    shell: str
    script: str
