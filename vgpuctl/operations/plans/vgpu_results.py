# SPDX-License-Identifier: Apache-2.0
"""vGPUs as results: those that exist, and those that a VM has only in its record or would get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from vgpuctl.backends import backend_for
from vgpuctl.model.gpu import Ownership, Vgpu
from vgpuctl.model.results.gpus import VgpuResult
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.value import replace

AnyVgpu = TypeVar("AnyVgpu", bound=VgpuResult)


def vgpu_result(vgpu: Vgpu) -> VgpuResult:
    """Return one vGPU's result."""
    return VgpuResult(
        carrier=vgpu.carrier,
        profile=vgpu.profile,
        gpu=vgpu.gpu,
        function=vgpu.function,
        backend=vgpu.backend,
        framebuffer_mib=vgpu.framebuffer_mib,
        vm=vgpu.vm,
        ownership=vgpu.owner,
        present=vgpu.present,
        reason=vgpu.reason,
        name=vgpu.name,
        placement_id=vgpu.placement_id,
        gpu_instance_id=vgpu.gi_id,
        companions=(),
        attached=vgpu.attached,
        other_vms=vgpu.other_vms,
    )


def planned_vgpu(vgpu: AssignedVgpu, vm: str | None, *, present: bool = False) -> VgpuResult:
    """Return the result of a vGPU that is assigned to a VM, or to none, and was not observed."""
    return VgpuResult(
        carrier=vgpu.carrier,
        profile=vgpu.profile,
        gpu=vgpu.gpu,
        function=vgpu.function,
        backend=vgpu.backend,
        framebuffer_mib=vgpu.framebuffer_mib,
        vm=vm,
        ownership=Ownership.MANAGED,
        present=present,
        reason=None,
        name=None,
        placement_id=vgpu.placement_id,
        gpu_instance_id=None,
        companions=(),
        attached=None,
        other_vms=(),
    )


def vgpu_results(vgpus: Iterable[Vgpu]) -> tuple[VgpuResult, ...]:
    """Return the results of what is taken; a GPU that is passed through is one, with the others of its slot."""
    return with_companions([vgpu_result(v) for v in vgpus])


def with_companions(vgpus: Sequence[AnyVgpu]) -> tuple[AnyVgpu, ...]:
    """Return results with the other functions of a whole GPU's slot, such as its audio, in the GPU's own result."""
    companions: dict[tuple[str, str | None], list[str]] = {(v.gpu, v.vm): [] for v in vgpus if v.carrier == v.gpu}
    shown: list[AnyVgpu] = []
    for vgpu in vgpus:
        same_slot = companions.get((vgpu.gpu, vgpu.vm))
        if same_slot is not None and backend_for(vgpu.backend).takes_whole_gpu and vgpu.carrier != vgpu.gpu:
            same_slot.append(vgpu.carrier)
        else:
            shown.append(vgpu)
    return tuple(replace(v, companions=tuple(companions[v.gpu, v.vm])) if v.carrier == v.gpu else v for v in shown)
