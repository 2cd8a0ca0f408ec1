# SPDX-License-Identifier: Apache-2.0
"""A model of GPUs with MIG that create and remove a GPU instance with each vGPU: the capacity of an ideal partition.

vgpuctl itself creates no instance for a VM (`set-mig` does, when no running vGPU prevents it). So only `simulate` uses
this.
"""

from __future__ import annotations

from vgpuctl.capacity.restrictions import why_profile_forbidden
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.mig import GiProfile, MigState
from vgpuctl.placement.slice_kind import Footprint, SliceKind
from vgpuctl.value import Value

CARRIER_POOL = 0


class OnDemandGpu(Value):
    """What a GPU with MIG offers on demand. GPUs with equal objects share one `SliceKind`.

    `footprints`: profile, its framebuffer in MiB, where its instance may start, its number of memory slices, and the
    numbers of the pools from which it takes one unit. Types of which several fit into one instance are omitted.
    `pools`: the capacity of each pool. The first is the carriers; the others are limits of GPU instance profiles.
    """

    model: str
    framebuffer_mib: int
    footprints: tuple[tuple[str, int, tuple[int, ...], int, tuple[int, ...]], ...]
    slices: int
    pools: tuple[int, ...]

    def make_kind(self) -> SliceKind:
        """Return the kind of such GPUs."""
        return SliceKind(
            f"{self.model}, MIG on demand",
            self.framebuffer_mib,
            {profile: mib for profile, mib, *_ in self.footprints},
            {
                profile: Footprint(starts, size, tuple((pool, 1) for pool in pools))
                for profile, _, starts, size, pools in self.footprints
            },
            slices=self.slices,
            pools=self.pools,
        )


def make_on_demand_gpu(gpu: Gpu) -> OnDemandGpu | None:
    """Return what a GPU offers on demand; None where MIG is off, or its placements or its framebuffer are unknown."""
    mig = gpu.mig
    if mig is None or not mig.enabled or not mig.profiles or gpu.framebuffer_mib is None:
        return None
    exclusive = [(t, p) for t in gpu.types if (p := _exclusive_gi_profile(gpu, mig, t)) is not None]
    limits = sorted(  # a limit of as many instances as there are placements never applies
        {p.profile_id: p.max_instances for _, p in exclusive if p.max_instances < len(p.placements)}.items()
    )
    pool = {profile_id: pool_number for pool_number, (profile_id, _) in enumerate(limits, 1)}
    footprints = tuple(
        (
            vgpu_type.profile,
            vgpu_type.framebuffer_mib or 0,
            tuple(sorted(span.start for span in profile.placements)),
            profile.placements[0].size,  # all placements of a profile have one size
            (CARRIER_POOL, *([pool[profile.profile_id]] if profile.profile_id in pool else [])),
        )
        for vgpu_type, profile in exclusive
    )
    slices = max((s.start + s.size for p in mig.profiles for s in p.placements), default=0)
    carriers = sum(1 for f in gpu.functions if not f.problem)
    return OnDemandGpu(gpu.model, gpu.framebuffer_mib, footprints, slices, (carriers, *(limit for _, limit in limits)))


def _exclusive_gi_profile(gpu: Gpu, mig: MigState, vgpu_type: VgpuType) -> GiProfile | None:
    """Return the GPU instance profile of a type that has an instance to itself; None for any other type."""
    if vgpu_type.gi_profile_id is None or vgpu_type.framebuffer_mib is None or (vgpu_type.max_per_gi or 1) > 1:
        return None
    profile = mig.find_profile(vgpu_type.gi_profile_id)
    return (
        profile
        if profile is not None and profile.placements and why_profile_forbidden(gpu, vgpu_type) is None
        else None
    )
