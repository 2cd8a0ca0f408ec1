# SPDX-License-Identifier: Apache-2.0
"""Choose the carriers of several identical VMs at once: each as if the VMs before it already existed."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import HostCannot, InUse, NoCapacity
from vgpuctl.model.gpu import Vgpu
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.operations.plans.choose import as_taken_vgpu, choose_vgpus
from vgpuctl.operations.plans.reserve import hypothetical_empty
from vgpuctl.operations.plans.unapplied import refuse_unapplied_settings
from vgpuctl.value import replace

VgpuChoices = tuple[tuple[AssignedVgpu, ...], ...]


def choose_batch_vgpus(
    snapshot: Snapshot, request: VmRequest, vms: Sequence[tuple[str, str]], *, reserve_slots: bool = True
) -> VgpuChoices:
    """Return the vGPUs of each of these VMs (name, uuid), in order.

    `reserve_slots` False: they stay off and reserve nothing. Their records name free slots first. After that, they fill
    the host repeatedly as if nothing were on it.

    Raises:
        NoCapacity: they do not all fit; `fits` says how many do now.
        VgpuctlError: as `choose_vgpus` for the first one.
    """
    chosen: list[tuple[AssignedVgpu, ...]] = []
    first_snapshot = snapshot
    for name, uuid in vms:
        try:
            vgpus = choose_vgpus(snapshot, replace(request, name=name), uuid)
        except (NoCapacity, InUse, HostCannot) as error:
            if not reserve_slots:
                snapshot = hypothetical_empty(snapshot)
                vgpus = choose_vgpus(snapshot, request, uuid)
            elif isinstance(error, HostCannot) or (isinstance(error, InUse) and not chosen):
                raise
            else:
                raise _no_room_error(error, request, len(chosen), len(vms)) from error
        chosen.append(vgpus)
        snapshot = replace(snapshot, vgpus=(*snapshot.vgpus, *_taken_vgpus(request, name, uuid, vgpus)))
    if reserve_slots:
        refuse_unapplied_settings(first_snapshot, (v for vgpus in chosen for v in vgpus))
    return tuple(chosen)


def _taken_vgpus(request: VmRequest, name: str, uuid: str, vgpus: Sequence[AssignedVgpu]) -> tuple[Vgpu, ...]:
    return tuple(as_taken_vgpu(v, name, uuid, request.spread_group) for v in vgpus)


def _no_room_error(error: NoCapacity | InUse, request: VmRequest, fits: int, requested: int) -> NoCapacity:
    """Say how many fit; if none fit, also what blocks the next one."""
    what = ", ".join(p if n == 1 else f"{p}:{n}" for p, n in request.profiles) or f"mode {request.mode}"
    facts = {name: error.facts[name] for name in ("gpus", "details") if name in error.facts and not fits}
    left_out = error.facts.get("left_out")
    lines = [f"no room for {count_text(requested, 'VM')} with {what}: {fits} fit now; none was created"]
    lines += [str(line) for line in left_out] if isinstance(left_out, list) else []
    return NoCapacity(
        "; ".join(lines),
        hint="; ".join(filter(None, (f"request {fits} new ones, or make room first" if fits else None, error.hint))),
        fits=fits,
        wanted=requested,
        **facts,
    )
