# SPDX-License-Identifier: Apache-2.0
"""GPUs that are not divided into vGPUs: plain VFs, whole functions, and GPUs whose VFs are off."""

from __future__ import annotations

from collections.abc import Sequence, Set

from vgpuctl.gpu.division import AllocatedSlot, Division, GpuNumbers, Room, list_free_functions, name_holders
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.model.gpu import Backend, Ownership, VgpuType

PLAIN_VF = "VF"
"""Used as the profile of a plain VF, which has none."""


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
        return f"it offers no vGPUs: its backend is {self.gpu.backend}"


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
