# SPDX-License-Identifier: Apache-2.0
"""Texts of values in tables and pages: sizes, vGPUs, names, times in this machine's zone. `?`: unknown, `-`: none."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from vgpuctl.model.numbers import format_bytes, format_mib

if TYPE_CHECKING:
    from vgpuctl.model.results.gpus import ExplainResult, ProfileResult, ReasonResult, RoomResult, TypeResult
    from vgpuctl.model.results.host import LogEntryResult
    from vgpuctl.model.results.moves import BarrierResult
    from vgpuctl.model.results.vgpus import VgpuResult

MAX_NAMES = 8


def log_result(entry: LogEntryResult) -> str:
    """Return how a command ended: `ok`, `no change`, or the error's code."""
    return "no change" if entry.result == "ok" and not entry.changed else entry.result


def local_time(entry: LogEntryResult) -> str:
    """Return when a command ended, in local time; the text of another version as it is."""
    try:
        return datetime.fromisoformat(entry.time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return entry.time


def log_command(entry: LogEntryResult) -> str:
    """Return the command line without the program's name and without --host: the log is one host's.

    A line that no shell takes, such as one that was cut, is returned as it is.
    """
    text = entry.arguments.removeprefix("vgpuctl ")
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    kept = tuple(_without_host(words))
    return text if len(kept) == len(words) else shlex.join(kept)


def _without_host(words: Sequence[str]) -> Iterator[str]:
    is_value = False
    for word in words:
        if not is_value and word != "--host" and not word.startswith("--host="):
            yield word
        is_value = word == "--host"


def mib(value: int | None) -> str:
    """Return a size in MiB for people, "?" if it is unknown."""
    return "?" if value is None else format_mib(value)


def size(value: int | None) -> str:
    """Return a size in bytes for people, "?" if it is unknown."""
    return "?" if value is None else format_bytes(value)


def holder(vgpu: VgpuResult) -> str:
    """Name who has a vGPU: the VM, or the carrier of an unmanaged or leaked one."""
    return vm_label(vgpu) if vgpu.vm or vgpu.name else f"{vgpu.carrier} ({vgpu.ownership})"


def shorten_names(names: Sequence[str]) -> str:
    """Return the names, each once with its count; of many names the first ones and the last."""
    labels = [name if n == 1 else f"{name} ({n})" for name, n in Counter(names).items()]
    if len(labels) <= MAX_NAMES:
        return ", ".join(labels)
    return f"{', '.join(labels[: MAX_NAMES - 2])} \N{HORIZONTAL ELLIPSIS} {labels[-1]}"


def vgpus_text(vgpus: Sequence[VgpuResult]) -> str:
    """Return a VM's vGPUs in one cell."""
    counts = Counter(_vgpu_cell(v) for v in vgpus)
    return ", ".join(label if n == 1 else f"{n} x {label}" for label, n in counts.items()) or "-"


def vm_label(vgpu: VgpuResult) -> str:
    """Return the VM of a vGPU, and its name if host.yaml lists it: `vGPU spare`, `vdi-001 (vGPU spare)`."""
    name, users = f"vGPU {vgpu.name}" if vgpu.name else "", vgpu_users(vgpu)
    return f"{users} ({name})" if name and users else name or or_dash(users)


def vgpu_users(vgpu: VgpuResult) -> str:
    """Return the VMs that name a vGPU, its own first: `web (lacks it), web-clone`; "" if there is none."""
    own = f"{vgpu.vm} (lacks it)" if vgpu.vm and vgpu.attached is False else vgpu.vm
    return ", ".join(filter(None, (own, *vgpu.other_vms)))


def _vgpu_cell(vgpu: VgpuResult) -> str:
    if not vgpu.present and vgpu.reason:
        return f"{vgpu.profile or vgpu.carrier} ({vgpu.reason})"
    return f"{vgpu.profile} on {vgpu.gpu}" if vgpu.profile else str(vgpu.carrier)


def device_item(vgpu: VgpuResult, vm: str) -> tuple[str, str]:
    """Return the label and the line of a VM's device: a whole GPU, or a VF without a profile, is no vGPU."""
    line = vgpu_line(vgpu, vm)
    return ("vgpu", line) if vgpu.profile else ("gpu", line.removeprefix("GPU "))


def vgpu_line(vgpu: VgpuResult, vm: str | None = None) -> str:
    """Return what a vGPU is, where it is, and if it is missing: `A100-4C on GPU 0000:3b:00.0 (CARRIER, missing)`.

    `vm`: the VM that is shown; it may only name the vGPU of another VM.
    """
    line = f"{vgpu.profile} on GPU {vgpu.gpu}" if vgpu.profile else f"GPU {vgpu.gpu}"
    line += f", {location(vgpu)}" if location(vgpu) else ""
    line += f" with {', '.join(vgpu.companions)}" if vgpu.companions else ""
    missing = "" if vgpu.present else f", {vgpu.reason or 'missing'}"
    missing += ", but the running VM lacks it" if vgpu.attached is False else ""
    missing += f", of {vgpu.vm}" if vm and vgpu.vm not in (None, vm) else ""
    others = [name for name in vgpu.other_vms if name != vm]
    missing += f", also in {', '.join(others)}" if others else ""
    return f"{line} ({vgpu.carrier}{missing})" if vgpu.carrier != vgpu.gpu else f"{line}{missing}"


def location(vgpu: VgpuResult) -> str:
    """Return where a vGPU is on its GPU, "" if there is nothing to show: `placement 24`, `GPU instance 3`."""
    if vgpu.placement_id is not None:
        return f"placement {vgpu.placement_id}"
    if vgpu.gpu_instance_id is not None:
        return f"GPU instance {vgpu.gpu_instance_id}"
    return ""


def or_unknown(value: object) -> str:
    """Return a value as text, `?` if it is unknown."""
    return "?" if value is None else str(value)


def free_count(profile: ProfileResult | TypeResult | RoomResult | ReasonResult | ExplainResult | BarrierResult) -> str:
    """Return how many more fit: a number, `at least N` if only a minimum is known, or `?`."""
    minimum = profile.free_at_least
    return f"at least {minimum}" if profile.free is None and minimum else or_unknown(profile.free)


def or_dash(value: object) -> str:
    """Return a value as text, `-` if there is none."""
    return "-" if value is None or value == "" else str(value)
