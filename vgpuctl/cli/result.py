# SPDX-License-Identifier: Apache-2.0
"""The output of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.outcome import AnyResult


class CommandOutput(Value):
    """What is printed: `result` for programs and, rendered as a page, for people. `raw` is printed as it is.

    `status` is the exit status of a command that worked but reports a problem: its result is printed all the same.
    """

    result: AnyResult
    raw: str | None = None
    status: int = 0
