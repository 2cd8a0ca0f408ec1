# SPDX-License-Identifier: Apache-2.0
"""What is on each GPU of a host: its desktops' vGPUs as they were reported, and what the host's room says besides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

from vgpuctl.controller.model import Desktop, DesktopVgpu
from vgpuctl.gpu.kind_rules import kind_of, state_of
from vgpuctl.model.host_room import DivisionRule, GpuRoom, HostRoom
from vgpuctl.value import Value

MAX_OTHERS = 128
"""So many vGPUs of others are shown on a GPU; a host that says more is not believed."""


class GpuSlice(Value):
    """A vGPU, or the whole GPU. `desktop` None: the host's own."""

    desktop: Desktop | None
    vgpu: DesktopVgpu


class GpuContents(Value):
    """A GPU. `framebuffer_mib` None: not known; `taken_mib`: of it."""

    address: str
    model: str
    framebuffer_mib: int | None
    taken_mib: int
    slices: tuple[GpuSlice, ...]


def gpus_of(room: HostRoom | None, desktops: Iterable[Desktop]) -> tuple[GpuContents, ...]:
    """Return the GPUs of a host by address: those that it has room on, and those that its desktops are on."""
    own: dict[str, list[GpuSlice]] = defaultdict(list)
    for desktop in desktops:
        for vgpu in desktop.report.vgpus if desktop.report is not None else ():
            own[vgpu.gpu].append(GpuSlice(desktop, vgpu))
    rules = () if room is None else room.rules
    known = {gpu.address: gpu for gpu in (() if room is None else room.gpus) if gpu.address is not None}
    return tuple(_use_of(address, known.get(address), rules, own[address]) for address in sorted(known.keys() | own))


def _use_of(address: str, gpu: GpuRoom | None, rules: Sequence[DivisionRule], own: Sequence[GpuSlice]) -> GpuContents:
    slices = sorted(own, key=_order)
    known_mib = sum(one.vgpu.framebuffer_mib or 0 for one in slices)
    rule = None if gpu is None or gpu.rule is None or not 0 <= gpu.rule < len(rules) else rules[gpu.rule]
    if gpu is None or rule is None:
        is_others = gpu is not None and not slices and not gpu.free
        shown = (*slices, GpuSlice(None, DesktopVgpu(address))) if is_others else tuple(slices)
        total = None if gpu is None else gpu.framebuffer_mib
        is_whole = total is not None and any(one.vgpu.framebuffer_mib is None for one in shown)
        return GpuContents(
            address, "" if gpu is None else gpu.model, total, total if total and is_whole else known_mib, shown
        )
    total = rule.framebuffer_mib
    if any(one.vgpu.framebuffer_mib is None for one in slices):
        return GpuContents(address, gpu.model, total, total, tuple(slices))
    count = min(max(0, gpu.vgpus - len(slices)), MAX_OTHERS)
    if count == 0 and gpu.whole and not gpu.free and not slices:
        return GpuContents(address, gpu.model, total, total, (GpuSlice(None, DesktopVgpu(address)),))
    each = max(0, _taken_mib(rule, gpu) - known_mib) // count if count else 0
    slices += [GpuSlice(None, DesktopVgpu(address, None, each))] * count
    return GpuContents(address, gpu.model, total, min(total, known_mib + each * count), tuple(slices))


def _taken_mib(rule: DivisionRule, gpu: GpuRoom) -> int:
    """Return what is not free for the profile that fits best; 0 where the host describes it wrongly."""
    with suppress(ValueError):
        kind, state = kind_of(rule), state_of(rule, gpu.state)
        free = max((kind.count_remaining(state, name) * size for name, size in kind.sizes.items()), default=0)
        return max(0, rule.framebuffer_mib - free)
    return 0


def _order(one: GpuSlice) -> tuple[bool, int, str]:
    placement = one.vgpu.placement
    return placement is None, placement or 0, "" if one.desktop is None else one.desktop.name
