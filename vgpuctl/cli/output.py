# SPDX-License-Identifier: Apache-2.0
"""Writes a result to stdout. One that tells of a change is told on stderr when that fails: nobody may miss it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from vgpuctl.cli import streams
from vgpuctl.errors import OutputLost

HERE = ""
"""The name of the host of a command that has one."""

_OF_A_VM = ("create-vm", "ensure-vm", "start-vm", "stop-vm", "attach", "detach", "refresh-vm", "set-profile")
_OF_VGPUS = ("create-vgpu", "ensure-vgpu", "delete-vgpu")
_OF_A_GPU = ("set-mode", "set-mig", "set-mixed-size", "set-scheduler", "cordon", "uncordon")
_OF_THE_HOST = {"apply": "diff", "install-host": "doctor", "uninstall-host": "doctor", "sim-reset": "list-gpus"}


def written(kind: str, write: Callable[[], None], changes: Mapping[str, Any]) -> bool:
    """Write a result; False when it could not be written, which is told. `changes`: the `data` of changes, by host.

    Raises:
        OutputLost: it could not be written, and there are changes.
    """
    try:
        write()
    except OSError as error:
        done = {host: data for host, data in changes.items() if not _only_planned(data)}
        if done:
            raise _lost(kind, error, done) from error
        if isinstance(error, BrokenPipeError):  # who only looks, as into `head`, has seen enough
            return True
        streams.write_err(f"vgpuctl: the result could not be written: {error.strerror}   [output]")
        return False
    return True


def _only_planned(data: Any) -> bool:
    return isinstance(data, Mapping) and bool(data.get("dry_run"))


def _lost(kind: str, error: OSError, done: Mapping[str, Any]) -> OutputLost:
    lines = [line if host == HERE else f"{host}: {line}" for host, data in done.items() for line in told(kind, data)]
    lost = OutputLost(
        f"{kind} is done, and its result could not be written: {error.strerror}",
        hint=f"see what is there: {look(kind, next(iter(done.values())))}",
        lines=lines,
        errno=error.errno,
    )
    lost.changed = True
    return lost


def told(kind: str, data: Any) -> list[str]:
    """Return what people would have read of a result; its steps, where it has no page."""
    from vgpuctl.cli import pages, tables

    try:
        return tables.plain(pages.page(kind, data).blocks).splitlines()
    except Exception:  # noqa: BLE001 - whatever cannot be shown, what was done must be told
        steps = data.get("steps") if isinstance(data, Mapping) else None
        return [str(step) for step in steps] if isinstance(steps, (list, tuple)) else []


def look(kind: str, data: Any, address: str | None = None) -> str:
    """Return the command that shows what a change made, here or on the host of that address."""
    program = "vgpuctl" if address is None else f"vgpuctl --host {address}"
    named = data if isinstance(data, Mapping) else {}
    if kind in _OF_A_VM and named.get("name"):
        return f"{program} show-vm {shlex.quote(str(named['name']))}"
    if kind in _OF_A_GPU and named.get("address"):
        return f"{program} show-gpu {shlex.quote(str(named['address']))}"
    return f"{program} {'list-vgpus' if kind in _OF_VGPUS else _OF_THE_HOST.get(kind, 'list-vms')}"
