# SPDX-License-Identifier: Apache-2.0
"""Sending the content of a volume from one simulated host to another. No lock is held while the caller reports."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from vgpuctl.errors import NoSpace
from vgpuctl.sim.core import Core, FaultInjected
from vgpuctl.sim.peers import opened_target
from vgpuctl.sim.refusals import VirError, VirErrorNumber, read_call, translate_error
from vgpuctl.sim.state import file_record

if TYPE_CHECKING:
    from vgpuctl.sim.objects import SimFile
    from vgpuctl.sim.state import State


class SimVolumeSending:
    """The part of `ports.Storage` that sends a volume to another host."""

    _core: Core

    def send_volume(self, pool: str, name: str, target_uri: str, report: Callable[[float], None]) -> None:
        """Send a volume's content to the volume of the same pool and name, in two halves; one half has no firmware.

        Raises:
            NoSpace: the target's file system is full.
        """
        with self._core.call_lock, read_call(self._core, "send-volume", name) as state:
            file = _require_volume(state, pool, name)
        report(0.0)
        try:
            with opened_target(self._core, target_uri) as target:
                _receive(target, pool, name, replace(file, firmware="none"))
                report(50.0)
                _receive(target, pool, name, file)
        except (VirError, FaultInjected) as exc:
            raise translate_error(exc, "send-volume", name) from exc
        report(100.0)


def _receive(target: Core, pool: str, name: str, file: SimFile) -> None:
    """Write a file's content over a volume: its format, size and base are part of that."""
    with target.operation("receive-volume", name) as change:
        existing = _require_volume(target.state, pool, name)
        is_block = existing.path.startswith("/dev/")
        if is_block and existing.size < file.size:
            raise NoSpace(f"cannot send volume {name}: No space left on device", path=existing.path)
        written = replace(file, path=existing.path, link=None, problem=None, tag=existing.tag)
        if is_block:
            written = replace(written, size=existing.size, allocation=existing.allocation)
        change.records.append(file_record(written))


def _require_volume(state: State, pool: str, name: str) -> SimFile:
    storage_pool = state.pools.get(pool)
    if storage_pool is None:
        text = f"Storage pool not found: no storage pool with matching name '{pool}'"
        raise VirError(VirErrorNumber.NO_STORAGE_POOL, text)
    file = state.files.get(posixpath.join(storage_pool.path, name))
    if file is None:
        text = f"Storage volume not found: no storage vol with matching name '{name}'"
        raise VirError(VirErrorNumber.NO_STORAGE_VOL, text)
    return file
