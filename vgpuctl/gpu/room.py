# SPDX-License-Identifier: Apache-2.0
"""How many more vGPUs of a type fit on a GPU, where the next ones would go, and what prevents more.

GPUs that are not divided into vGPUs are here: plain VFs, whole functions, and GPUs whose VFs are off.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from vgpuctl.gpu.division import (
    AllocatedSlot,
    Division,
    GpuNumbers,
    Room,
    is_given_whole,
    list_free_functions,
    name_holders,
)
from vgpuctl.gpu.equal_size import EqualSizeOnPf, EqualSizeOnVfs
from vgpuctl.gpu.gpu_instances import GpuInstances
from vgpuctl.gpu.mdev_pool import MdevPool, OtherMakersVfs
from vgpuctl.gpu.mixed_size import MixedSize
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import WHOLE_DEVICE_BACKENDS, Backend, Gpu, Ownership, Vgpu, VgpuType

PLAIN_VF = "VF"
"""Used as the profile of a plain VF, which has none."""


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


class NoVgpus(Division):
    """A GPU that offers no vGPUs now."""

    def room(self, vgpu_type: VgpuType) -> Room:
        """See `Division.room`."""
        return Room(0, (), (self.why_none,))

    @property
    def why_none(self) -> str:
        """Why it offers none."""
        if self.gpu.backend is None:
            return f"its VFs are off (0 of {self.gpu.vfs_total} enabled)"
        slicing = maker_of(self.gpu).slicing
        return f"it offers no vGPUs: {slicing or f'its backend is {self.gpu.backend}'}"


class PlainVfs(NoVgpus):
    """A GPU with plain VFs: they all count alike, and their number is the only limit."""

    mode = "sriov"

    def numbers(self, types: Sequence[VgpuType], read_profiles: Set[str] | None = None) -> GpuNumbers | None:
        """See `Division.numbers`. There is one profile, `PLAIN_VF`."""
        count = len(self.taken) + len(list_free_functions(self.gpu, self.taken))
        framebuffer = self.gpu.framebuffer_mib or 0
        sizes = {PLAIN_VF: framebuffer // max(1, count)}
        kind = SliceKind(self.gpu.model, framebuffer, sizes, {PLAIN_VF: Footprint((), 0, ((0, 1),))}, pools=(count,))
        return GpuNumbers(kind, len(self.taken), tuple(AllocatedSlot(v, PLAIN_VF, 1) for v in self.taken))


class GivenWhole(Division):
    """A GPU that a VM has as a whole, or that a command sets up."""

    def room(self, vgpu_type: VgpuType) -> Room:
        """See `Division.room`."""
        holders = [v for v in self.taken if v.carrier == self.gpu.address and v.backend is Backend.PASSTHROUGH]
        setting_up = next((v for v in holders if v.command is not None), None)
        if setting_up is None:
            return Room(0, (), (f"the whole GPU is assigned to {name_holders(holders)}",))
        if setting_up.owner is Ownership.LEAKED:
            return Room(0, (), (f"it is {setting_up.reason}; vgpuctl reconcile-host",))
        return Room(0, (), (f"{setting_up.holder_text} is setting it up",))
