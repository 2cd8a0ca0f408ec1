# SPDX-License-Identifier: Apache-2.0
"""What every changing command says, and where a value came from."""

from __future__ import annotations

from typing import Literal, TypedDict


class SourceShape(TypedDict):
    """A value and where it came from."""

    value: str | int | float | bool | list[str] | None
    source: Literal["command-line", "host.yaml", "default"]


class WorkShape(TypedDict):
    """What every changing command says beside its own data."""

    steps: list[str]
    notes: list[str]
    dry_run: bool
