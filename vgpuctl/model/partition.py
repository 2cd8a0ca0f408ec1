# SPDX-License-Identifier: Apache-2.0
"""How NVIDIA's driver partitions a GPU: MIG's GPU instances (GIs), as observed.

Sources: NVML's nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceInfo_t and nvmlGpuInstancePlacement_t.
"""

from __future__ import annotations

from vgpuctl.model.digits import whole
from vgpuctl.value import Value


class Span(Value):
    """Neighbouring memory slices of a GPU: the first one and how many."""

    start: int
    size: int

    def overlaps(self, other: Span) -> bool:
        """Say whether two share a slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        """As nvidia-smi prints it: `start:size`."""
        return f"{self.start}:{self.size}"


class GiProfile(Value):
    """A GPU instance profile that a GPU offers.

    `profile_id` is what makes one (`nvidia-smi mig -cgi`), not NVML's index; `name` as in `1g.10gb` or `1g.24gb+gfx`;
    `slices` its compute slices; `maximum` how many the GPU can have; `placements` where one may be, all of them, also
    those that are taken now.
    """

    profile_id: int
    name: str
    slices: int
    memory_mib: int
    maximum: int
    placements: tuple[Span, ...]


class GpuInstance(Value):
    """A GPU instance that exists. `gi_id` is the driver's number for it, which another one may have after a reboot."""

    gi_id: int
    profile_id: int
    span: Span


class Mig(Value):
    """MIG of one GPU that has it. `pending`: whether it is on after the GPU's next reset; mostly the same."""

    enabled: bool
    pending: bool
    profiles: tuple[GiProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()

    def profile(self, profile_id: int) -> GiProfile | None:
        """Return the profile with that id."""
        return next((p for p in self.profiles if p.profile_id == profile_id), None)


class MigSpec(Value):
    """MIG as people ask for it. `instances`: GPU instance profiles by name or id, one for each instance.

    `vgpus`: vGPU profiles, and for how many of each there has to be room; the instances follow from them then. None of
    either: MIG is to be off.
    """

    instances: tuple[str, ...] = ()
    vgpus: tuple[tuple[str, int], ...] = ()

    @property
    def on(self) -> bool:
        """Whether MIG is asked for."""
        return bool(self.instances or self.vgpus)


_NONE = 0xFFFF
"""What the driver shows where there is no placement (NVML_INVALID_VGPU_PLACEMENT_ID); for an instance it is larger."""


def shown_number(text: str) -> int | None:
    """Return a placement id or GPU instance id as the driver's file shows it; None for none, or for no number."""
    number = whole(text)
    return number if number is not None and 0 <= number < _NONE else None
