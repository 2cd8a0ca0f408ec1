# SPDX-License-Identifier: Apache-2.0
"""Plan MIG and mixed sizes of a GPU: what stands against it, what changes, and in the only order that works.

No vGPU; VFs off; MIG mode; VFs on, which takes GPU instances and mixed sizes away; GPU instances, the larger first, or
mixed sizes; the scheduler; vGPUs. While MIG mode and VFs stay as they are, instances come and go beside VMs that run in
others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vgpuctl.capacity.mixed_size import pack
from vgpuctl.errors import HostCannot, InUse, InvalidInput, VgpuctlError
from vgpuctl.layout import steps as vf_steps
from vgpuctl.layout.mig import Arrangement, Making, arrange, profiles_of
from vgpuctl.layout.partition import DestroyInstance, MakeInstance, SetMig, SetMixedSize
from vgpuctl.model.gpu import Gpu, Mode, Vgpu, VgpuType
from vgpuctl.model.partition import GiProfile, Mig, MigSpec
from vgpuctl.model.scheduler import Policy, SchedulerSpec
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.plan.emptied import EmptiedWork, Reason, emptied
from vgpuctl.plan.scheduler import differs, setting
from vgpuctl.scheduler.limits import as_spec
from vgpuctl.steps.scheduler import SetInstanceSchedulers, SetScheduler
from vgpuctl.value import Value, replace

AMPERE = 7
"""NVML's number: the architecture whose MIG mode may wait for a reset of the GPU."""


class Wish(Value):
    """How a GPU is to be partitioned, None for as it is. `mig` names its instances, also where vGPUs are asked for."""

    mig: MigSpec | None = None
    mixed_size: bool | None = None


class Change(Value):
    """What changes. `mode`: MIG goes on or off; `cold`: the VFs are new afterwards; None and nothing for no change."""

    mode: bool | None = None
    mig: bool = False
    """Whether MIG is on then."""
    cold: bool = False
    instances: Arrangement = Arrangement()
    mixed_size: bool | None = None
    empty: bool = False
    """Whether no vGPU may be on it meanwhile."""


def wish_for(gpu: Gpu, mode: str | None, mig: MigSpec | None, mixed_size: bool | None) -> Wish:
    """Return what is to be done in a mode: MIG and mixed sizes are for vGPUs, and passthrough has neither.

    `mode` None: they go off, on a GPU whose VFs are off and stay so.
    """
    if mode in (None, Mode.VGPU):
        return Wish(mig, mixed_size)
    if mode == Mode.PASSTHROUGH and gpu.mig is not None and gpu.mig.enabled:
        return Wish(MigSpec())
    return Wish()


def refuse_without_mode(address: str, mode: str | None, mig: MigSpec | None, mixed_size: bool | None) -> None:
    """Refuse MIG or mixed sizes of a GPU of which no mode is said.

    Raises:
        InvalidInput: they go with the mode vgpu.
    """
    said = "mig" if mig is not None else "mixed_size" if mixed_size is not None else None
    if mode is None and said is not None:
        raise InvalidInput(
            f"{said} is said of {address}, and no mode, with which it goes",
            hint="say mode: vgpu too, in any entry of gpus: that means this GPU",
            gpu=address,
        )


def unseen_off(snapshot: Snapshot, gpu: Gpu, wish: Wish) -> str | None:
    """Say that nobody can tell whether what is asked to be off is so; None where it can be seen, or more is asked for.

    A boot turns neither on: mixed sizes are off then, and MIG is as the driver kept it.
    """
    wanted = [word for word, off in (("MIG", wish.mig == MigSpec()), ("mixed sizes", wish.mixed_size is False)) if off]
    on = (wish.mig is not None and wish.mig.on) or wish.mixed_size
    if on or not wanted or not _blind(snapshot, gpu):
        return None
    what = f"{' and '.join(wanted)} of {gpu.address} {'are' if wanted[-1] != 'MIG' else 'is'} to be off"
    return f"{what}, and NVML does not tell whether that is so: {snapshot.nvml.reason}"


def _blind(snapshot: Snapshot, gpu: Gpu) -> bool:
    """Say whether MIG and mixed sizes of a GPU may be on, and cannot be seen."""
    return gpu.nvidia_driver and gpu.mig is None and gpu.mixed_size is None and not snapshot.nvml.available


def as_wished(gpu: Gpu, wish: Wish) -> Gpu:
    """Return a GPU with MIG and mixed sizes as they are to be, for what is judged by them."""
    mig = gpu.mig
    if mig is not None and wish.mig is not None:
        mig = replace(mig, enabled=wish.mig.on, pending=wish.mig.on)
    return replace(gpu, mig=mig, mixed_size=gpu.mixed_size if wish.mixed_size is None else wish.mixed_size)


def change_of(snapshot: Snapshot, gpu: Gpu, number: int, wish: Wish, types: tuple[VgpuType, ...]) -> Change:
    """Return what changes on a GPU that has `number` VFs then. `types`: all that its driver knows.

    Raises:
        HostCannot: it has no MIG or mixed sizes, or not with what is asked for beside.
        InvalidInput, NoCapacity: it has no such instance, or they do not fit on it together.
        InUse: a VM keeps a vGPU that would have no place.
    """
    _refuse_impossible(snapshot, gpu, wish)
    mig = gpu.mig
    if mig is None:
        cold = number != gpu.vfs_enabled
        return _with_sizes(snapshot, gpu, Change(cold=cold), wish, types)
    on = mig.enabled if wish.mig is None else wish.mig.on
    mode = on if wish.mig is not None and (mig.enabled is not on or mig.pending is not on) else None
    cold = number != gpu.vfs_enabled or (mode is not None and gpu.vfs_enabled > 0)
    wanted = profiles_of(mig, wish.mig.instances, gpu.address) if wish.mig is not None and on else None
    _refuse_misfits(snapshot, gpu, mode, wanted, types)
    instances = Arrangement()
    taken = _occupied(snapshot, gpu, mig, types)
    if wanted is not None:
        there = replace(mig, instances=()) if cold or mode is not None else mig
        instances = arrange(there, wanted, taken, gpu.address)
    elif on and cold and number:
        instances = Arrangement(make=_there(mig))  # new VFs take them away, and MIG is to be left as it is
    elif mode is False and not gpu.vfs_enabled:
        instances = Arrangement(destroy=mig.instances)  # those that go with the VFs need no step
    empty = any(i.gi_id in taken for i in instances.destroy)
    change = Change(mode, on, cold, instances, None, empty)
    return _with_sizes(snapshot, gpu, change, wish, types)


def _with_sizes(snapshot: Snapshot, gpu: Gpu, change: Change, wish: Wish, types: tuple[VgpuType, ...]) -> Change:
    """Return a change with that of mixed sizes: new VFs have none, and they change on an empty GPU alone."""
    if wish.mixed_size is None or wish.mixed_size is (False if change.cold else bool(gpu.mixed_size)):
        return change
    _refuse_sizes(snapshot, gpu, types, mixed=wish.mixed_size)
    return replace(change, mixed_size=wish.mixed_size, empty=change.empty or not change.cold)


def cold_steps(
    gpu: Gpu, number: int, change: Change, scheduler: SchedulerSpec | None, *, autoprobe: bool, kernel: str
) -> tuple[Step, ...]:
    """Return the steps with which a GPU's VFs go or come, MIG mode between them, and what is set on new VFs."""
    found: list[Step] = []
    if change.mode is None:
        found += vf_steps(gpu, number, autoprobe=autoprobe, again=lost_with_vfs(gpu))
    else:
        before = gpu.mig is not None and gpu.mig.enabled
        found += vf_steps(gpu, 0, autoprobe=autoprobe, again=lost_with_vfs(gpu))
        found += _destroyed(gpu, change.instances)
        found.append(SetMig(gpu.address, change.mode, before, reset=may_reset(gpu, kernel)))
        found += vf_steps(replace(gpu, vfs_enabled=0), number, autoprobe=autoprobe)
    found += _made(gpu, change.instances.make)
    if change.mixed_size:
        found.append(SetMixedSize(gpu.address, enable=True))
    if scheduler is not None and change.mig and change.instances.make:
        found.append(SetInstanceSchedulers(gpu.address, scheduler))
    elif found and scheduler is not None and not change.mig:
        found.append(SetScheduler(gpu.address, scheduler))  # new VFs took it away
    return tuple(found)


def warm_work(
    snapshot: Snapshot, gpu: Gpu, change: Change, scheduler: SchedulerSpec | None, *, drain: bool
) -> EmptiedWork:
    """Return what changes a GPU whose VFs stay: beside its VMs where it can be, else with all of them off.

    `scheduler`: set with the rest where no vGPU is on the GPU anyway.

    Raises:
        InUse: vGPUs have to go for a moment, and may not (`drain`), or are not vgpuctl's.
    """
    found = [*_destroyed(gpu, change.instances), *_made(gpu, change.instances.make)]
    sizes: list[Step] = [] if change.mixed_size is None else [SetMixedSize(gpu.address, change.mixed_size)]
    running = gpu.scheduler.state if gpu.scheduler is not None else None
    if change.mig and change.instances.make and scheduler is not None and (change.empty or not differs(gpu, scheduler)):
        found.append(setting(gpu, scheduler))  # those that exist run it, or are empty meanwhile
    elif change.empty and scheduler is not None and differs(gpu, scheduler):
        again = setting(gpu, scheduler)
        sizes = [again, *sizes] if change.mixed_size else [*sizes, again]  # mixed sizes take no fixed share
    elif change.mixed_size and running is not None and running.policy is Policy.FIXED_SHARE:
        raise HostCannot(
            f"{gpu.address} schedules with fixed_share, and with mixed sizes there is best_effort and equal_share only",
            hint=f"vgpuctl set-scheduler {gpu.address} --policy best_effort",
            check="scheduler",
            gpu=gpu.address,
        )
    inner = (*found, *sizes)
    if not change.empty:
        return EmptiedWork(steps=inner)
    sizes_change = "the driver changes mixed sizes of a GPU without vGPUs only"
    moved = "GPU instances go in which they may be"
    because = moved if change.mixed_size is None else sizes_change
    return emptied(snapshot, gpu, inner, Reason(because, None if drain else "--drain"), change.mixed_size)


def lost_with_vfs(gpu: Gpu) -> tuple[Step, ...]:
    """Return what sets a GPU as it is, after its VFs went and are on again: the way back of a change that failed."""
    found: list[Step] = []
    if gpu.mig is not None and gpu.mig.enabled:
        found += _made(gpu, _there(gpu.mig))
    if gpu.mixed_size:
        found.append(SetMixedSize(gpu.address, enable=True))
    state = gpu.scheduler.state if gpu.scheduler is not None and gpu.scheduler.interfaces else None
    spec = as_spec(state) if state is not None else None
    if spec is not None and spec.policy is not Policy.BEST_EFFORT and not (gpu.mig is not None and gpu.mig.enabled):
        found.append(SetScheduler(gpu.address, spec))
    return tuple(found)


def may_reset(gpu: Gpu, kernel: str) -> bool:
    """Say whether a GPU may be reset when its MIG mode waits for that: Ampere, on kernels before 7.

    From Linux 7 on the bus reset wedges hosts with vendor-specific VFIO; later GPUs change MIG mode at once.
    """
    architecture = gpu.scheduler.architecture if gpu.scheduler is not None else None
    major = kernel.partition(".")[0]
    return architecture == AMPERE and major.isdigit() and int(major) < 7


def _destroyed(gpu: Gpu, instances: Arrangement) -> list[Step]:
    known = ((gpu.mig.profile(i.profile_id) if gpu.mig is not None else None, i) for i in instances.destroy)
    unknown = "unknown"
    return [
        DestroyInstance(gpu.address, p or GiProfile(i.profile_id, unknown, 0, 0, 0, (i.span,)), i.span)
        for p, i in known
    ]


def _there(mig: Mig) -> tuple[Making, ...]:
    """Return what makes the instances that a GPU has where they are, the larger first."""
    there = ((mig.profile(i.profile_id), i.span) for i in mig.instances)
    made = [Making(profile, span) for profile, span in there if profile is not None]
    return tuple(sorted(made, key=lambda one: (-one.span.size, one.span.start)))


def _made(gpu: Gpu, make: Iterable[Making]) -> list[Step]:
    return [MakeInstance(gpu.address, one.profile, one.span) for one in make]


def _refuse_impossible(snapshot: Snapshot, gpu: Gpu, wish: Wish) -> None:
    """Refuse what the GPU, or what is asked for beside, does not allow; nothing is looked up that is not asked for."""
    if _blind(snapshot, gpu) and wish != Wish():  # what is not seen may be on, and is not called off
        raise _unknown(snapshot, gpu, "MIG" if wish.mig is not None else "mixed sizes", "vgpuctl doctor")
    if not ((wish.mig is not None and wish.mig.on) or wish.mixed_size):
        return
    facts = {"gpu": gpu.address}
    what = "MIG" if wish.mig is not None and wish.mig.on else "mixed sizes"
    if wish.mig is not None and wish.mig.on and wish.mixed_size:
        raise InvalidInput(
            f"{gpu.address} cannot have MIG and mixed sizes at once{_inside(gpu)}",
            hint="of mig: and mixed_size: keep one, in whichever entry of gpus: says it; vgpuctl set-mig"
            f" {gpu.address} --off, or set-mixed-size {gpu.address} off, takes one away",
            **facts,
        )
    if not gpu.nvidia_driver:
        raise _cannot(
            f"{gpu.address} ({gpu.model}) has the driver {gpu.driver or 'none'}; only NVIDIA's has {what}",
            f"vgpuctl set-mode {gpu.address} vgpu, if it is an NVIDIA GPU",
            "driver",
            facts,
        )
    if wish.mig is not None and wish.mig.on and gpu.mig is None:
        raise _unknown(snapshot, gpu, "MIG", "A100, A30, H100, H200, B200 and RTX PRO 6000 have it")
    if not wish.mixed_size:
        return
    if gpu.mig is not None and gpu.mig.enabled and wish.mig is None:
        raise _cannot(
            f"{gpu.address} has MIG on, with which there are no mixed sizes{_inside(gpu)}",
            f"vgpuctl set-mig {gpu.address} --off",
            "mixed-size",
            facts,
        )
    told = gpu.mig is None or not gpu.mig.enabled  # with MIG NVML does not say whether there are mixed sizes without
    if gpu.mixed_size is None and gpu.vfs_enabled and told:
        raise _unknown(snapshot, gpu, "mixed sizes", "GPUs with virtual functions have them, from driver 550 on")
    if not gpu.vfs_total:
        raise _unknown(snapshot, gpu, "mixed sizes", "they need a GPU with virtual functions")


def _inside(gpu: Gpu) -> str:
    """Say what the driver could do instead on GPUs whose instances have several vGPUs each (GB20x), "" for others.

    It mixes sizes inside an instance, each by itself (nvmlGpuInstanceSetVgpuHeterogeneousMode); vgpuctl counts and
    places one size in each instance.
    """
    if all((kind.max_per_gi or 1) == 1 for kind in gpu.types):
        return ""
    return ": its driver mixes sizes inside a GPU instance by a setting of that, which vgpuctl does not set"


def _unknown(snapshot: Snapshot, gpu: Gpu, what: str, hint: str) -> VgpuctlError:
    """Return the refusal of what NVML does not tell of a GPU. Without NVML it may still come, as after a boot."""
    if not snapshot.nvml.available and snapshot.nvml.reason is not None:
        why = f"NVML, which sets it, does not answer: {snapshot.nvml.reason}"
        return _cannot(f"{what} of {gpu.address}: {why}", "vgpuctl doctor", "driver", {"gpu": gpu.address})
    return _cannot(f"{gpu.address} ({gpu.model}) has no {what} here", hint, "partition", {"gpu": gpu.address})


def _cannot(message: str, hint: str, check: str, facts: dict[str, str]) -> HostCannot:
    return HostCannot(message, hint=hint, check=check, **facts)


def _type_of(vgpu: Vgpu, types: tuple[VgpuType, ...]) -> VgpuType | None:
    return next((t for t in types if vgpu.profile == t.profile), None)


def _occupied(snapshot: Snapshot, gpu: Gpu, mig: Mig, types: tuple[VgpuType, ...]) -> frozenset[int]:
    """Return the instances that a vGPU may be in: the one its VF names, else every one of its profile."""
    found: set[int] = set()
    for vgpu in snapshot.taken_on(gpu.address):
        function = gpu.function_at(vgpu.function)
        known = _type_of(vgpu, types)
        if not vgpu.present:
            continue
        if function is not None and function.gi_id is not None:
            found.add(function.gi_id)
        else:
            found |= {i.gi_id for i in mig.instances if known is None or i.profile_id == known.gi_profile_id}
    return frozenset(found)


def _refuse_misfits(
    snapshot: Snapshot,
    gpu: Gpu,
    mode: bool | None,
    wanted: tuple[GiProfile, ...] | None,
    types: tuple[VgpuType, ...],
) -> None:
    """Refuse a partition in which a vGPU that is promised, or there, has no place.

    Raises:
        InUse: naming the VMs and their profiles.
    """
    taken = [v for v in snapshot.taken_on(gpu.address) if v.profile is not None or v.present]
    if mode is not None:
        sliced = [(v, (known := _type_of(v, types)) is not None and known.gi_profile_id is not None) for v in taken]
        gone = [v for v, on in sliced if v.present or on is not mode]
        if gone:
            why = f"and with MIG {'on' if mode else 'off'} it has no {'time-sliced' if mode else 'MIG-backed'} vGPUs"
            raise _promised(gpu, gone, why)
    if wanted is None:
        return
    have = Counter(p.profile_id for p in wanted)
    for profile_id, needed in _instances_needed(taken, types).items():
        if needed > have[profile_id]:
            kept = [v for v in taken if (t := _type_of(v, types)) is not None and t.gi_profile_id == profile_id]
            profile = gpu.mig.profile(profile_id) if gpu.mig is not None else None
            name = profile.name if profile is not None else str(profile_id)
            why = f"which takes {needed} of the GPU instance {name}, and there would be {have[profile_id]}"
            raise _promised(gpu, kept, why)


def _instances_needed(taken: list[Vgpu], types: tuple[VgpuType, ...]) -> Counter[int]:
    """Return how many instances of each profile the vGPUs need; one of several has one framebuffer size (GB20x)."""
    kinds = [known for v in taken if (known := _type_of(v, types)) is not None]
    each = Counter(
        (t.gi_profile_id, t.framebuffer_mib, t.max_per_gi or 1) for t in kinds if t.gi_profile_id is not None
    )
    found: Counter[int] = Counter()
    for (profile_id, _, most), count in each.items():
        if profile_id is not None:
            found[profile_id] += -(-count // most)
    return found


def _refuse_sizes(snapshot: Snapshot, gpu: Gpu, types: tuple[VgpuType, ...], *, mixed: bool) -> None:
    """Refuse to change mixed sizes where the vGPUs that are promised would not all have a place then.

    Raises:
        InUse: naming the VMs and their profiles.
    """
    taken = [v for v in snapshot.taken_on(gpu.address) if v.profile is not None]
    kinds = [known for v in taken if (known := _type_of(v, types)) is not None]
    if not mixed and len({t.framebuffer_mib for t in kinds}) > 1:
        raise _promised(gpu, taken, "which have several sizes")
    placed = [t for t in kinds if t.placement_ids is not None]  # what is not told is tried, and undone
    if mixed and placed and pack(gpu, (), placed) is None:
        raise _promised(gpu, taken, "and with mixed sizes fewer fit: not all of these have a place then")


def _promised(gpu: Gpu, vgpus: list[Vgpu], why: str) -> InUse:
    names = sorted({v.holder for v in vgpus})
    profiles = sorted({v.profile for v in vgpus if v.profile is not None})
    return InUse(
        f"{gpu.address} keeps {', '.join(profiles) or 'vGPUs'} for {', '.join(names)}, {why}",
        hint="delete those VMs and vGPUs first, or give VMs another profile: vgpuctl set-profile VM --profile PROFILE",
        gpu=gpu.address,
        vms=names,
        profiles=profiles,
    )
