# SPDX-License-Identifier: Apache-2.0
"""What several hosts answered, of any command."""

from __future__ import annotations

from typing import TypedDict


class HostAnswerShape(TypedDict):
    """One host. `document` is what the vgpuctl there printed; where none came one of the same form says why."""

    host: str
    address: str
    exit_status: int
    seconds: float
    document: object


class HostsShape(TypedDict):
    """Every host that was asked, in the order of the inventory; also when some of them failed."""

    command: str
    hosts: list[HostAnswerShape]
