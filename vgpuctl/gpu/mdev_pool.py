# SPDX-License-Identifier: Apache-2.0
"""Parents of mediated devices, from other makers than NVIDIA, whose vGPU types share one pool (Intel GVT-g).

The driver says how many more of each type alone can be created (the kernel's mdev core), and some drivers what each
type takes from the pool. Source: docs/driver-api/vfio-mediated-device.rst in the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from functools import cached_property

from vgpuctl.gpu.division import (
    AllocatedSlot,
    Division,
    DivisionOnVfs,
    GpuNumbers,
    Remaining,
    Room,
    find_type,
    framebuffer_of,
    full_reason,
)
from vgpuctl.gpu.slice_kind import MAX_UNITS, Footprint, SliceKind
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import VgpuType
from vgpuctl.value import Value


class _Pool(Value):
    """A pool that the driver's numbers allow. `units`: what a vGPU of each profile takes; `used` and `total` units.

    `allocated`: the existing vGPUs, where it is known what each takes.
    """

    units: dict[str, int]
    used: int
    total: int
    allocated: tuple[AllocatedSlot, ...] = ()

    def count(self, profile: str) -> int:
        """Return how many more of one profile fit."""
        return max(0, self.total - self.used) // self.units[profile]


class MdevPool(Division):
    """A parent of mediated devices whose types share one pool."""

    @property
    def rule(self) -> str:
        """See `Division.rule`."""
        return maker_of(self.gpu).pool_rule

    def room(self, vgpu_type: VgpuType) -> Room:
        """See `Division.room`."""
        function = self.gpu.functions[0]
        if function.problem:
            return Room(0, (), (f"{function.address}: {function.problem}",))
        if vgpu_type.type_id not in (function.available_instances or {}):
            return Room(0, (), (f"its driver does not offer {vgpu_type.profile}",))
        free = self._pool.count(vgpu_type.profile)
        if free == 0:
            detail = f"the driver reports {self._offered[vgpu_type.profile]} available"
            return Room(0, (), (full_reason(self.taken, vgpu_type.max_per_gpu, detail),))
        return Room(free, (function.address,))

    def numbers(self, types: Sequence[VgpuType], read_profiles: Set[str] | None = None) -> GpuNumbers | None:
        """See `Division.numbers`. Without the drivers' units existing vGPUs cannot be removed in numbers."""
        profiles = [t.profile for t in types if read_profiles is None or t.profile in read_profiles]
        return self._describe(profiles, self._pool)

    def numbers_of_largest_pool(self, types: Sequence[VgpuType]) -> GpuNumbers | None:
        """Return the same for the largest pool that the driver's numbers allow: one more of any type would be too many.

        What does not fit into this pool does not fit at all.
        """
        units = self._true_units
        if units is not None:
            total = min((self._offered[p] + 1) * n for p, n in units.items())
        else:
            total = math.lcm(*(n + 1 for n in self._offered.values()))
            units = {p: total // (n + 1) for p, n in self._offered.items()}
        used = sum(units.get(v.profile or "", 0) for v in self.taken if not v.present)
        return self._describe([t.profile for t in types], _Pool(units, used, total - 1))

    @cached_property
    def _offered(self) -> dict[str, int]:
        """How many more of each profile alone the driver offers, without what is only recorded."""
        function = self.gpu.functions[0]
        if function.problem:
            return dict.fromkeys((t.profile for t in self.gpu.types), 0)
        available = function.available_instances or {}
        return {t.profile: available[t.type_id] for t in self.gpu.types if t.type_id in available}

    @cached_property
    def _true_units(self) -> dict[str, int] | None:
        """The units that the driver reports for each profile, if they explain how many it offers of each."""
        units = {t.profile: t.pool_units or 0 for t in self.gpu.types if t.profile in self._offered}
        if not units or not all(units.values()):
            return None
        free = max(self._offered[p] * n for p, n in units.items())
        return units if all(free // n == self._offered[p] for p, n in units.items()) else None

    @cached_property
    def _pool(self) -> _Pool:
        """The smallest pool that the driver's numbers allow.

        A recorded vGPU without a device takes its part of what the driver offers.
        """
        units = self._true_units or {}
        types = [find_type(self.gpu, v) for v in self.taken]
        slots = tuple(
            AllocatedSlot(v, t.profile, units[t.profile])
            for v, t in zip(self.taken, types, strict=True)
            if t is not None and t.profile in units
        )
        counted = {slot.vgpu.carrier for slot in slots}
        if not units or not all(v.present or v.carrier in counted for v in self.taken):
            return self._read_parts()
        free = max(self._offered[p] * n for p, n in units.items())
        present = sum(slot.place for slot in slots if slot.vgpu.present)
        return _Pool(units, sum(slot.place for slot in slots), free + present, slots)

    def _read_parts(self) -> _Pool:
        """Return the pool in parts of what the driver offers: a type takes the largest that its own number allows."""
        total = math.lcm(*(n for n in self._offered.values() if n))
        units = {p: total // n if n else total + 1 for p, n in self._offered.items()}
        absent = [v.profile or "" for v in self.taken if not v.present]
        used = sum(min(units.get(profile, total), total) for profile in absent)
        return _Pool(units, min(used, total), total)

    def _describe(self, profiles: Sequence[str], pool: _Pool) -> GpuNumbers | None:
        mib_by_profile = {t.profile: t.framebuffer_mib or 0 for t in self.gpu.types}
        sizes = {p: mib_by_profile[p] for p in profiles if p in pool.units}
        if max(pool.total, pool.used) > MAX_UNITS or not sizes:
            return None
        footprints = {p: Footprint((), 0, ((0, pool.units[p]),)) for p in sizes}
        framebuffer = framebuffer_of(self.gpu, [mib * (pool.total // pool.units[p]) for p, mib in sizes.items()])
        kind = SliceKind(self.gpu.model, framebuffer, sizes, footprints, pools=(pool.total,))
        return GpuNumbers(kind, pool.used, pool.allocated)


class OtherMakersVfs(DivisionOnVfs):
    """VFs of another maker than NVIDIA: only the driver's lists say what fits."""

    @property
    def rule(self) -> str:
        """See `Division.rule`."""
        return maker_of(self.gpu).pool_rule

    def remaining(self, vgpu_type: VgpuType, *, is_confirmed: bool) -> Remaining:
        """See `DivisionOnVfs.remaining`."""
        return self.remaining_up_to(vgpu_type.max_per_gpu)
