# SPDX-License-Identifier: Apache-2.0
"""GPUs with MIG as if each vGPU brought its own GPU instance and took it along: what a partition made to measure gives.

vgpuctl itself makes no instance for a VM (`set-mig` does, when nothing runs in the way), so this is for `simulate`.
"""

from __future__ import annotations

from vgpuctl.capacity.closed import why_not_allowed
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.partition import GiProfile, Mig
from vgpuctl.placement.slots import Slots, Takes
from vgpuctl.value import Value


class OnDemand(Value):
    """What a GPU with MIG offers on demand; equal ones are of one kind.

    `takes`: profile, its framebuffer in MiB, where its instance may start, how many memory slices it has, and the pools
    of which it takes one. Left out are profiles that share an instance with others.
    """

    model: str
    framebuffer_mib: int
    takes: tuple[tuple[str, int, tuple[int, ...], int, tuple[int, ...]], ...]
    slices: int
    pools: tuple[int, ...]

    def kind(self) -> Slots:
        """Return the kind of such GPUs."""
        return Slots(
            f"{self.model}, MIG on demand",
            self.framebuffer_mib,
            {profile: mib for profile, mib, *_ in self.takes},
            {p: Takes(starts, size, tuple((pool, 1) for pool in pools)) for p, _, starts, size, pools in self.takes},
            slices=self.slices,
            pools=self.pools,
        )


def on_demand(gpu: Gpu) -> OnDemand | None:
    """Return what a GPU offers so; None where MIG is off, or its placements or its framebuffer are not known."""
    mig = gpu.mig
    if mig is None or not mig.enabled or not mig.profiles or gpu.framebuffer_mib is None:
        return None
    alone = [(t, p) for t in gpu.types if (p := _instance(gpu, mig, t)) is not None]
    few = sorted({p.profile_id: p.maximum for _, p in alone if p.maximum < len(p.placements)}.items())
    pool = {profile_id: number for number, (profile_id, _) in enumerate(few, 1)}
    takes = tuple(
        (
            kind.profile,
            kind.framebuffer_mib or 0,
            tuple(sorted(span.start for span in profile.placements)),
            profile.placements[0].size,
            (0, *([pool[profile.profile_id]] if profile.profile_id in pool else [])),
        )
        for kind, profile in alone
    )
    slices = max((s.start + s.size for p in mig.profiles for s in p.placements), default=0)
    carriers = sum(1 for f in gpu.functions if not f.problem)
    return OnDemand(gpu.model, gpu.framebuffer_mib, takes, slices, (carriers, *(most for _, most in few)))


def _instance(gpu: Gpu, mig: Mig, kind: VgpuType) -> GiProfile | None:
    """Return the GPU instance profile of a type that has it for itself; None for any other type."""
    if kind.gi_profile_id is None or kind.framebuffer_mib is None or (kind.max_per_gi or 1) > 1:
        return None
    profile = mig.profile(kind.gi_profile_id)
    return profile if profile is not None and profile.placements and why_not_allowed(gpu, kind) is None else None
