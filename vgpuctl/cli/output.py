# SPDX-License-Identifier: Apache-2.0
"""Writes a result to stdout. If that fails, a result that reports a change goes to stderr: nobody may miss it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from vgpuctl.cli import streams
from vgpuctl.errors import OutputLost

LOCAL = ""
"""The host's name in `changes`, for a command that runs on one host."""

_VM_COMMANDS = ("create-vm", "ensure-vm", "start-vm", "stop-vm", "attach", "detach", "refresh-vm", "set-profile")
_VGPU_COMMANDS = ("create-vgpu", "ensure-vgpu", "delete-vgpu")
_GPU_COMMANDS = ("set-mode", "set-mig", "set-mixed-size", "set-scheduler", "cordon", "uncordon")
_HOST_COMMANDS = {"apply": "diff", "install-host": "doctor", "uninstall-host": "doctor", "sim-reset": "list-gpus"}


def write_result(kind: str, write: Callable[[], None], changes: Mapping[str, Any]) -> bool:
    """Write a result; if it cannot be written, report that and return False. `changes`: the `data` of changes, by host.

    Raises:
        OutputLost: it could not be written, and there are changes.
    """
    try:
        write()
    except OSError as error:
        applied = {host: data for host, data in changes.items() if not _is_dry_run(data)}
        if applied:
            raise _output_lost(kind, error, applied) from error
        if isinstance(error, BrokenPipeError):  # a reader like `head` has what it needs, and nothing changed
            return True
        streams.write_err(f"vgpuctl: the result could not be written: {error.strerror}   [output]")
        return False
    return True


def _is_dry_run(data: Any) -> bool:
    return isinstance(data, Mapping) and bool(data.get("dry_run"))


def _output_lost(kind: str, error: OSError, applied: Mapping[str, Any]) -> OutputLost:
    lines = [
        line if host == LOCAL else f"{host}: {line}"
        for host, data in applied.items()
        for line in result_lines(kind, data)
    ]
    output_error = OutputLost(
        f"{kind} is done, and its result could not be written: {error.strerror}",
        hint=f"see what is there: {inspect_command(kind, next(iter(applied.values())))}",
        lines=lines,
        errno=error.errno,
    )
    output_error.changed = True
    return output_error


def result_lines(kind: str, data: Any) -> list[str]:
    """Return the lines of a result that people would have read, or its steps if its page cannot be rendered."""
    from vgpuctl.cli import pages, tables

    try:
        return tables.render_plain(pages.page(kind, data).blocks).splitlines()
    except Exception:  # noqa: BLE001 - changes must be reported even if the page cannot be rendered
        steps = data.get("steps") if isinstance(data, Mapping) else None
        return [str(step) for step in steps] if isinstance(steps, (list, tuple)) else []


def inspect_command(kind: str, data: Any, address: str | None = None) -> str:
    """Return the command that shows what a change made, here or on the host of that address."""
    program = "vgpuctl" if address is None else f"vgpuctl --host {address}"
    fields = data if isinstance(data, Mapping) else {}
    if kind in _VM_COMMANDS and fields.get("name"):
        return f"{program} show-vm {shlex.quote(str(fields['name']))}"
    if kind in _GPU_COMMANDS and fields.get("address"):
        return f"{program} show-gpu {shlex.quote(str(fields['address']))}"
    return f"{program} {'list-vgpus' if kind in _VGPU_COMMANDS else _HOST_COMMANDS.get(kind, 'list-vms')}"
