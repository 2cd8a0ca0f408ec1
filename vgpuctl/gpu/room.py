# SPDX-License-Identifier: Apache-2.0
"""How many more vGPUs of a type fit on a GPU, where the next ones would go, and what prevents more."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.gpu.division import Division, Room, is_given_whole
from vgpuctl.gpu.equal_size import EqualSizeOnPf, EqualSizeOnVfs
from vgpuctl.gpu.gpu_instances import GpuInstances
from vgpuctl.gpu.mdev_pool import MdevPool, OtherMakersVfs
from vgpuctl.gpu.mixed_size import MixedSize
from vgpuctl.gpu.whole_functions import GivenWhole, NoVgpus, PlainVfs
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import WHOLE_DEVICE_BACKENDS, Backend, Gpu, Vgpu, VgpuType


def divide(gpu: Gpu, taken: Sequence[Vgpu]) -> Division:
    """Return the way in which a GPU is divided now, given every carrier taken on it (created, recorded or claimed)."""
    return GivenWhole(gpu, taken) if is_given_whole(gpu, taken) else _way_of(gpu)(gpu, taken)


def compute_room(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> Room:
    """Return the room for one type on one GPU, given every carrier taken on it (created, recorded or claimed)."""
    return divide(gpu, taken).room(vgpu_type)


def _way_of(gpu: Gpu) -> type[Division]:
    is_nvidia = maker_of(gpu).has_nvml
    if gpu.backend is Backend.SRIOV_VF:
        return PlainVfs
    if gpu.backend is None or gpu.backend in WHOLE_DEVICE_BACKENDS:
        return NoVgpus
    if gpu.backend is Backend.MDEV_PF:
        return EqualSizeOnPf if is_nvidia else MdevPool
    if not is_nvidia:
        return OtherMakersVfs
    if gpu.mig is not None and gpu.mig.enabled:
        return GpuInstances
    return MixedSize if gpu.mixed_size else EqualSizeOnVfs


def why_profile_unknown(gpu: Gpu) -> str:
    """Return why a GPU does not list a type: it offers none, its types cannot be read, or it has others."""
    division = divide(gpu, ())
    if isinstance(division, NoVgpus):
        return division.why_none
    broken = [f"{f.address}: {f.problem}" for f in gpu.functions if f.problem]
    return "; ".join(broken) if broken and not gpu.types else "its driver does not offer this profile"
