# SPDX-License-Identifier: Apache-2.0
"""What the ways to divide a GPU have in common: their answers, and the rules for vGPUs that are on VFs.

Each way is a `Division` in a module of its own: `equal_size`, `mixed_size`, `gpu_instances` (MIG) and `mdev_pool`.
`room` has GPUs that are not divided, and chooses between all. A division counts once: `room` explains the numbers of
its kind (`gpu_kind`), and `numbers` hands the same kind to whoever weighs many choices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set

from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.model.gpu import Backend, Gpu, GpuFunction, Vgpu, VgpuType
from vgpuctl.value import Value

MAX_TIME_SLICED = 32
"""The most vGPUs on a GPU without MIG, of any size (kernel_vgpu_mgr.c, MAX_VGPU_DEVICES_PER_PGPU)."""

HOW_MANY_UNKNOWN = "how many fit is not known: NVML does not answer"


class Room(Value):
    """`free`: how many more fit now; None when that is unknown (at least one may be tried).

    `at_least`: where `free` is None, how many surely fit; None when that is unknown too. `functions`: where the next
    ones would go, in order; a PF is listed once, however many it takes, and on a mixed-size GPU every free function is
    listed. `reasons`: the blockers, as sentences; empty when there are none. `may_be_more`: `free` is 0 because of
    something unknown, so one more would be a risk for vGPUs that are only recorded, but it may fit.
    """

    free: int | None
    functions: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    at_least: int | None = None
    may_be_more: bool = False

    @property
    def guaranteed(self) -> int | None:
        """How many more are guaranteed to fit; None when no number is known."""
        return self.at_least if self.free is None else self.free

    @property
    def has_room(self) -> bool:
        """Whether one more can be tried."""
        return bool(self.functions) and self.free != 0


class Remaining(Value):
    """`free`: how many more fit by the rule, ignoring the number of VFs; None when the driver does not report it.

    `reason`: the blocker when none fits. `is_lower_bound`: the place of some vGPU on the GPU is unknown, so `free`
    assumes the worst place; if the driver still offers the type, the driver knows better.
    """

    free: int | None
    reason: str = ""
    is_lower_bound: bool = False


class AllocatedSlot(Value):
    """A vGPU as the state of its GPU counts it. `place`: what `GpuKind.remove` needs to remove it."""

    vgpu: Vgpu
    profile: str
    place: int


class GpuNumbers(Value):
    """One GPU as numbers. `allocated`: its vGPUs, without those that cannot be removed one by one."""

    kind: GpuKind
    state: State
    allocated: tuple[AllocatedSlot, ...] = ()


class Division(ABC):
    """One GPU with every carrier taken on it (created, recorded or claimed), divided in one way.

    `mode`: the mode of requests that it serves.
    """

    mode = "vgpu"

    def __init__(self, gpu: Gpu, taken: Sequence[Vgpu]) -> None:
        self.gpu = gpu
        self.taken = tuple(taken)

    @property
    def rule(self) -> str | None:
        """How the GPU is divided, as a clause; None when it offers no vGPUs now."""
        return None

    @abstractmethod
    def room(self, vgpu_type: VgpuType) -> Room:
        """Return the room for one type, with the reasons when there is none."""

    def numbers(self, types: Sequence[VgpuType], read_profiles: Set[str] | None = None) -> GpuNumbers | None:
        """Return the GPU as numbers for these of its types; None when it is unknown what fits.

        A type for which something is unknown, or which the driver does not offer although its rules would allow it,
        has no number. `read_profiles`: those for which it was read what the driver offers now; all when it is None. The
        others are counted by the driver's rules alone: good enough to weigh what remains, not to place a vGPU.
        """
        return None

    def max_when_empty(self, vgpu_type: VgpuType) -> int | None:
        """Return how many of a type the empty GPU takes in its current mode; None when that is unknown."""
        return vgpu_type.max_per_gpu


class DivisionOnVfs(Division):
    """A GPU with one vGPU on each VF. Subclasses say how many more fit, ignoring the VFs."""

    def __init__(self, gpu: Gpu, taken: Sequence[Vgpu]) -> None:
        super().__init__(gpu, taken)
        self.free_functions = list_free_functions(gpu, taken)

    def room(self, vgpu_type: VgpuType) -> Room:
        """See `Division.room`."""
        offering = self._offering(vgpu_type)
        remaining = self._remaining_with_driver(vgpu_type, is_offered=bool(offering))
        broken = tuple(f"{f.address}: {f.problem}" for f in self.gpu.functions if f.problem)
        if remaining.free == 0:
            return Room(0, (), (remaining.reason, *broken), may_be_more=remaining.is_lower_bound)
        if not offering:
            return Room(0, (), (self._no_free_vf_reason(vgpu_type), *broken))
        addresses = tuple(f.address for f in offering)
        awaited = [v for v in self.taken if v.needs_device]
        if remaining.free is None and awaited:
            return Room(0, (), (_missing_devices_reason(awaited), *broken), may_be_more=True)
        if remaining.free is None:
            return Room(None, addresses, tuple(filter(None, (remaining.reason, *broken))))
        free = min(remaining.free, len(offering))
        functions = addresses if self.gpu.mixed_size else addresses[:free]
        if remaining.is_lower_bound and remaining.free < len(offering):
            unknown = f"at least {free}: the placement of the vGPUs of {name_holders(self.taken)} is not known"
            return Room(None, functions, (unknown, *broken), at_least=free)
        return Room(free, functions, broken)

    def numbers(self, types: Sequence[VgpuType], read_profiles: Set[str] | None = None) -> GpuNumbers | None:
        """See `Division.numbers`."""
        numbers = self.describe(types)
        if numbers is None:
            return None
        offered = [
            vgpu_type
            for vgpu_type in types
            if (read_profiles is not None and vgpu_type.profile not in read_profiles)
            or numbers.kind.count_remaining(numbers.state, vgpu_type.profile) <= len(self._offering(vgpu_type))
        ]
        return numbers if len(offered) == len(types) else self.describe(offered)

    @abstractmethod
    def remaining(self, vgpu_type: VgpuType, *, is_confirmed: bool) -> Remaining:
        """Return how many more of a type fit by the rule of the division.

        `is_confirmed`: the driver, which knows every vGPU of the GPU and its place, offers one more.
        """

    def describe(self, types: Sequence[VgpuType]) -> GpuNumbers | None:
        """Return the GPU as numbers by the rule of the division and the number of VFs; None when they are unknown."""
        return None

    def remaining_up_to(self, limit: int | None) -> Remaining:
        """Return how many more fit where only a maximum counts; unknown without one."""
        if limit is None:
            return Remaining(None, HOW_MANY_UNKNOWN if self.gpu.backend is Backend.VENDOR_VF else "")
        free = max(0, limit - len(self.taken))
        return Remaining(free, full_reason(self.taken, limit, "the maximum for this type"))

    @property
    def carriers(self) -> int:
        """How many vGPUs the VFs carry: existing ones, and one on each free, working VF.

        A VF that offers nothing while others offer something is not ready. Where none offers anything, the GPU is full.
        """
        ready = [f for f in self.free_functions if any((f.available_instances or {}).values())]
        return len(self.taken) + len(ready or self.free_functions)

    def _offering(self, vgpu_type: VgpuType) -> list[GpuFunction]:
        """Return the free VFs on which the driver offers a type now."""
        return [f for f in self.free_functions if (f.available_instances or {}).get(vgpu_type.type_id, 0) > 0]

    def _remaining_with_driver(self, vgpu_type: VgpuType, *, is_offered: bool) -> Remaining:
        """Return the remaining room. `is_offered`: the driver lists the type on a free VF now.

        The driver's list says that one more fits next to the existing devices, wherever they are; the driver does not
        know about recorded vGPUs without a device.
        """
        wrong_mode = why_wrong_mig_mode(self.gpu, vgpu_type)
        if wrong_mode is not None:
            return Remaining(0, wrong_mode)
        if self.gpu.mig is None and vgpu_type.gi_profile_id is not None:
            return Remaining(None, "how many fit is not known: NVML shows its GPU instances only to root")
        is_confirmed = is_offered and all(v.present and v.target_placement_id is None for v in self.taken)
        remaining = self.remaining(vgpu_type, is_confirmed=is_confirmed)
        is_refuted = remaining.free == 0 and remaining.is_lower_bound and is_confirmed
        return Remaining(1, is_lower_bound=True) if is_refuted else remaining

    def _no_free_vf_reason(self, vgpu_type: VgpuType) -> str:
        holders = name_holders(self.taken)
        if not self.free_functions:
            return f"no VF is free: {len(self.gpu.functions)} enabled, {len(self.taken)} in use by {holders}"
        detail = f"; in use by {holders}" if self.taken else ""
        return f"none of its {len(self.free_functions)} free VFs offers {vgpu_type.profile} now{detail}"


def list_free_functions(gpu: Gpu, taken: Sequence[Vgpu]) -> list[GpuFunction]:
    """Return the free VFs that have no problem."""
    busy = {v.function for v in taken}
    return [
        f for f in gpu.functions if f.address not in busy and not f.problem and not f.mdevs and f.current_type is None
    ]


def why_wrong_mig_mode(gpu: Gpu, vgpu_type: VgpuType) -> str | None:
    """Return why a type cannot be created in the current MIG mode, and the command that changes that; None when it can.

    Where the driver does not report which types are backed by a GPU instance, only its lists decide.
    """
    if gpu.mig is None or all(t.gi_profile_id is None for t in gpu.types):
        return None
    if gpu.mig.enabled and vgpu_type.gi_profile_id is None:
        return f"MIG is on, and {vgpu_type.profile} needs a GPU without MIG: vgpuctl set-mig {gpu.address} --off"
    if not gpu.mig.enabled and vgpu_type.gi_profile_id is not None:
        return (
            f"MIG is off, and {vgpu_type.profile} needs a GPU instance: "
            f"vgpuctl set-mig {gpu.address} --for {vgpu_type.profile}:1"
        )
    return None


def name_holders(taken: Sequence[Vgpu]) -> str:
    """Name the holders, shortened in the middle: vdi-001 … vdi-010."""
    names = sorted({v.holder_text for v in taken})
    if not names:
        return "nobody"
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]} … {names[-1]} ({len(names)})"


def full_reason(taken: Sequence[Vgpu], limit: int | None, detail: str) -> str:
    """Return the reason that so many are in use, of how many, and by whom."""
    total = f" of {limit}" if limit is not None else ""
    return f"{len(taken)}{total} in use ({detail}): {name_holders(taken)}"


def find_type(gpu: Gpu, vgpu: Vgpu) -> VgpuType | None:
    """Return the type of a vGPU on a GPU, by its device or else by its record; None where neither has it."""
    by_id = gpu.find_type(vgpu.type_id) if vgpu.type_id is not None else None
    return by_id or next((t for t in gpu.types if t.profile == vgpu.profile), None)


def sizes_of(types: Sequence[VgpuType]) -> dict[str, int]:
    """Return the framebuffer in MiB of each profile whose framebuffer is known."""
    return {t.profile: t.framebuffer_mib for t in types if t.framebuffer_mib is not None}


def framebuffer_of(gpu: Gpu, largest_sums: Sequence[int]) -> int:
    """Return the GPU's framebuffer in MiB; without NVML the most that vGPUs of one of its profiles have together."""
    return gpu.framebuffer_mib or max(largest_sums, default=0)


def is_given_whole(gpu: Gpu, taken: Sequence[Vgpu]) -> bool:
    """Return whether all of the GPU is given to a VM, or a command sets it up."""
    return any(v.carrier == gpu.address and v.backend is Backend.PASSTHROUGH for v in taken)


def _missing_devices_reason(awaited: Sequence[Vgpu]) -> str:
    """Return why nothing is added: the remaining room may belong to recorded vGPUs that have no device yet."""
    return (
        f"how many fit is not known without NVML, and {len(awaited)} recorded vGPUs have no device yet: "
        f"start {name_holders(awaited)} first, or vgpuctl restore-host"
    )
