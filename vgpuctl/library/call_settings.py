# SPDX-License-Identifier: Apache-2.0
"""How the calls of a host work: waiting, progress, confirmation, cancellation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.model.outcome import NoProgress, confirm_everything
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Confirm, Progress, Subjects

DEFAULT_WAIT_SECONDS = 60.0


def never_cancelled() -> bool:
    """Return False."""
    return False


class CallSettings(Value):
    """How calls work. `wait_seconds`: for another vgpuctl, a busy device, a guest that shuts down.

    `confirm` is called before something is lost. `cancelled` is called before each step; if it returns True, the work
    stops and is undone. `command_line` is written to the audit journal; None: the process's own. `batch_subjects`: the
    call is part of a batch, which has one entry, and this is what the batch changes; None: the call has its own entry.
    """

    wait_seconds: float = DEFAULT_WAIT_SECONDS
    progress: Progress = NoProgress()
    confirm: Confirm = confirm_everything
    cancelled: Callable[[], bool] = never_cancelled
    command_line: tuple[str, ...] | None = None
    batch_subjects: Subjects | None = None
