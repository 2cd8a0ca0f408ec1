# SPDX-License-Identifier: Apache-2.0
"""The host that --host, --root and --connect name, opened with the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput
from vgpuctl.library import GpuHost, confirm_everything, never_cancelled
from vgpuctl.library import open_host as open_library_host

if TYPE_CHECKING:
    from vgpuctl.cli.settings import Settings
    from vgpuctl.model.outcome import Confirm, Progress


def open_host(
    settings: Settings,
    *,
    progress: Progress | None = None,
    confirm: Confirm = confirm_everything,
    cancelled: Callable[[], bool] = never_cancelled,
) -> GpuHost:
    """Return the host that the global options name.

    Raises:
        InvalidInput: there is no such host, or the options contradict each other.
    """
    if settings.is_remote:
        raise InvalidInput("this command works only on this machine", hint="omit --host ssh://")
    return open_library_host(
        settings.host,
        root=settings.root,
        connect=settings.connect,
        wait_seconds=settings.wait,
        progress=progress,
        confirm=confirm,
        cancelled=cancelled,
        command_line=("vgpuctl", *settings.args),
    )
