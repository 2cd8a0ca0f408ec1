# SPDX-License-Identifier: Apache-2.0
"""How NVIDIA's driver partitions a GPU: MIG's GPU instances (GIs), as observed.

Sources: NVML's nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceInfo_t and nvmlGpuInstancePlacement_t.
"""

from __future__ import annotations

from vgpuctl.model.numbers import parse_integer
from vgpuctl.value import Value


class PlacementSpan(Value):
    """Consecutive memory slices of a GPU: the first one and their number."""

    start: int
    size: int

    def overlaps(self, other: PlacementSpan) -> bool:
        """Return whether the two spans share a slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        """Return it as nvidia-smi prints it: `start:size`."""
        return f"{self.start}:{self.size}"


class GiProfile(Value):
    """A GPU instance profile that a GPU offers.

    `profile_id`: the id that creates an instance (`nvidia-smi mig -cgi`), not NVML's index. `name`: as in `1g.10gb` or
    `1g.24gb+gfx`. `max_instances`: how many the GPU can have. `placements`: every possible placement, also those that
    are taken now.
    """

    profile_id: int
    name: str
    compute_slices: int
    memory_mib: int
    max_instances: int
    placements: tuple[PlacementSpan, ...]


class GpuInstance(Value):
    """An existing GPU instance. `gi_id`: the driver's number for it; another instance may have it after a reboot."""

    gi_id: int
    profile_id: int
    placement: PlacementSpan


class MigState(Value):
    """MIG of a GPU that supports it. `pending_enabled`: whether MIG is on after the next reset; mostly the same."""

    enabled: bool
    pending_enabled: bool
    profiles: tuple[GiProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()

    def find_profile(self, profile_id: int) -> GiProfile | None:
        """Return the profile with that id."""
        return next((p for p in self.profiles if p.profile_id == profile_id), None)


class MigSpec(Value):
    """The MIG layout that a user requests. `instances`: GPU instance profiles by name or id, one for each instance.

    `vgpus`: vGPU profiles, and how many of each must fit; vgpuctl derives the instances from them. Both empty: MIG off.
    """

    instances: tuple[str, ...] = ()
    vgpus: tuple[tuple[str, int], ...] = ()

    @property
    def is_requested(self) -> bool:
        """Whether MIG is requested."""
        return bool(self.instances or self.vgpus)


_NO_PLACEMENT = 0xFFFF
"""What the driver shows for "no placement" (NVML_INVALID_VGPU_PLACEMENT_ID); for "no instance" it is larger."""


def parse_driver_id(text: str) -> int | None:
    """Return the placement id or GPU instance id in a driver's file; None when there is none or it is no number."""
    number = parse_integer(text)
    return number if number is not None and 0 <= number < _NO_PLACEMENT else None
