# SPDX-License-Identifier: Apache-2.0
"""Random small hosts of every way to divide a GPU, and any value as text that can be pasted into a test.

A host is made from what is true: vGPUs are created one by one where the rules allow it. Then its driver reports what
follows from the created ones, and some of the truth is hidden.

Size: over 400 lines, because a host of every way to divide a GPU is made and hidden by the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from random import Random
from typing import Any

from tests.unit.gpu.brute_force import Layout, driver_chooses_instances, list_layouts, places, put
from tests.values import snapshot
from vgpuctl.model.gpu import (
    NVIDIA_VENDOR_ID,
    Backend,
    GiProfile,
    Gpu,
    GpuFunction,
    GpuInstance,
    GpuMode,
    Mdev,
    MigState,
    Ownership,
    PlacementSpan,
    Vgpu,
    VgpuType,
)
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.value import Value, replace

WAYS = (
    "same size on a PF",
    "same size on mdev VFs",
    "same size on vendor VFs",
    "one type at a time",
    "mixed sizes",
    "one per GPU instance",
    "several per GPU instance",
    "pool with units",
    "pool without units",
    "plain VFs and whole GPUs",
)
WHOLE = ("whole", "")


def make_host(way: str, seed: int) -> Snapshot:
    """Return a host with one to three GPUs that are divided in this way; the same for the same seed."""
    random = Random(f"{way} {seed}")
    types = _types(way, random)
    gpus: list[Gpu] = []
    vgpus: list[Vgpu] = []
    again = seed
    for number in range(random.choice((1, 1, 2, 2, 3))):
        again = again if number and random.random() < 0.3 else random.randrange(10**9)
        gpu, there = _gpu_with_vgpus(way, types, f"0000:{number + 1:02x}:00.0", Random(again))
        gpus.append(gpu)
        vgpus += there
    if random.random() < 0.1:
        gpu, there = _gpu_with_vgpus("plain VFs and whole GPUs", (), "0000:09:00.0", random)
        gpus.append(gpu)
        vgpus += there
    return snapshot(*gpus, vgpus=tuple(vgpus))


def _types(way: str, random: Random) -> tuple[VgpuType, ...]:
    makers = {
        "mixed sizes": _placed_types,
        "one per GPU instance": _instance_types,
        "several per GPU instance": _shared_instance_types,
        "pool with units": _pool_types,
        "pool without units": _pool_types,
    }
    types = makers.get(way, _sized_types)(random)
    return tuple(replace(t, pool_units=None) for t in types) if way == "pool without units" else types


def _named(number: int, profile: str, gib: int, **more: Any) -> VgpuType:
    return VgpuType(str(600 + number), f"NVIDIA {profile}", profile, gib * 1024, **more)


def _sized_types(random: Random) -> tuple[VgpuType, ...]:
    """Return types of two or three sizes; one size has several, now and then with another maximum."""
    crowd = random.random() < 0.1
    memory = 40 if crowd else random.choice((4, 6, 8))
    types = []
    for number, profile in enumerate(random.sample(("X-1Q", "X-1C", "X-2Q", "X-2C", "X-3Q", "X-4C"), 4)):
        gib = int(profile[2])
        most = memory // gib if random.random() < 0.7 else random.randint(1, max(1, memory // gib))
        types.append(_named(number, profile, gib, max_per_gpu=most))
    if random.random() < 0.15:
        types[0] = replace(types[0], max_per_gpu=None)
    return tuple(types)


def _placed_types(random: Random) -> tuple[VgpuType, ...]:
    if random.random() < 0.15:
        crowd = (("X-1Q", 1, range(40)), ("X-2Q", 2, range(0, 40, 20)))
        return tuple(_placed(n, profile, size, tuple(ids)) for n, (profile, size, ids) in enumerate(crowd))
    slices = random.choice((4, 6, 8))
    types = []
    for number, size in enumerate(sorted(random.choice((1, 1, 2, 3, 4)) for _ in range(random.randint(2, 4)))):
        every = range(slices - size + 1)
        aligned = tuple(n for n in every if n % size == 0)
        ids = aligned if random.random() < 0.5 else tuple(sorted(random.sample(every, min(len(every), 4))))
        types.append(_placed(number, f"X-{size}{'QCAB'[number]}", size, ids))
    return tuple(types)


def _placed(number: int, profile: str, size: int, ids: tuple[int, ...]) -> VgpuType:
    """Return a type of a mixed-size GPU: there its maximum is the number of its placement ids."""
    return _named(number, profile, size, max_per_gpu=len(ids), placement_ids=ids, placement_size=size)


def _instance_types(random: Random) -> tuple[VgpuType, ...]:
    """Return types of which a GPU instance takes one, and one for the GPU without MIG."""
    backed = [("X-1-5C", 19, 5), ("X-1-5CME", 20, 5), ("X-2-10C", 14, 10), ("X-3-20C", 9, 20), ("X-3-20Q", 9, 20)]
    types = [
        _named(n, profile, gib, max_per_gpu=7, gi_profile_id=gi, max_per_gi=1)
        for n, (profile, gi, gib) in enumerate(random.sample(backed, 3))
    ]
    return (*types, _named(9, "X-5C", 5, max_per_gpu=4))


def _shared_instance_types(random: Random) -> tuple[VgpuType, ...]:
    """Return types of which a GPU instance takes several of one size."""
    backed = [
        ("X-1-2Q", 47, 2, 4),
        ("X-1-2A", 47, 2, 4),
        ("X-1-4Q", 47, 4, 2),
        ("X-1-8Q", 47, 8, 1),
        ("X-2-8Q", 35, 8, 2),
    ]
    types = []
    for number, (profile, gi, gib, most) in enumerate(random.sample(backed, 3)):
        own = most if random.random() < 0.75 else random.randint(1, most)
        types.append(_named(number, profile, gib, max_per_gpu=16, gi_profile_id=gi, max_per_gi=own))
    if all(t.max_per_gi == 1 for t in types):
        types[0] = replace(types[0], max_per_gi=3)
    return tuple(types)


def _pool_types(random: Random) -> tuple[VgpuType, ...]:
    """Return types of another maker: `pool_units` are the truth, also where the driver does not report them."""
    return tuple(
        VgpuType(f"v-{n}", f"vir{n}", f"vir{n}", units * 1024, pool_units=units)
        for n, units in enumerate(random.sample(range(1, 7), random.randint(2, 3)))
    )


def _gpu_with_vgpus(way: str, types: tuple[VgpuType, ...], address: str, random: Random) -> tuple[Gpu, list[Vgpu]]:
    """Return a GPU and what is on it; what could not have been recorded is drawn again."""
    while True:
        gpu = _bare_gpu(way, _own_limit(types, random), address, random)
        if way == "plain VFs and whole GPUs":
            vgpus = _whole_devices(gpu, random)
            return _restricted(_with_broken_vfs(gpu, vgpus, random), random), vgpus
        gpu, vgpus = _fill(gpu, random)
        gpu, vgpus = _hide(gpu, vgpus, random)
        if list_layouts(gpu, vgpus):
            break
    if random.random() < 0.05:
        vgpus = [_whole(gpu)]
    return _restricted(gpu, random), vgpus


def _own_limit(types: tuple[VgpuType, ...], random: Random) -> tuple[VgpuType, ...]:
    """Return the types of one GPU; now and then it takes fewer of one than other GPUs."""
    number = random.randrange(max(1, len(types)))
    limit = types[number].max_per_gpu if types and not types[number].placement_ids else None
    if not limit or random.random() < 0.85:
        return types
    return (*types[:number], replace(types[number], max_per_gpu=max(1, limit - 1)), *types[number + 1 :])


def _bare_gpu(way: str, types: tuple[VgpuType, ...], address: str, random: Random) -> Gpu:
    backend = {
        "same size on a PF": Backend.MDEV_PF,
        "same size on mdev VFs": Backend.MDEV_VF,
        "same size on vendor VFs": Backend.VENDOR_VF,
        "pool with units": Backend.MDEV_PF,
        "pool without units": Backend.MDEV_PF,
        "one type at a time": random.choice((Backend.MDEV_PF, Backend.MDEV_VF)),
        "plain VFs and whole GPUs": random.choice((Backend.SRIOV_VF, Backend.SRIOV_VF, Backend.PASSTHROUGH)),
    }.get(way, random.choice((Backend.MDEV_VF, Backend.VENDOR_VF)))
    crowd = any((t.max_per_gpu or 0) > 30 for t in types)
    vfs = random.randint(35, 40) if crowd else random.randint(1, 7)
    addresses = (
        [address]
        if backend in (Backend.MDEV_PF, Backend.PASSTHROUGH)
        else [f"{address[:-4]}{n // 8:02x}.{n % 8}" for n in range(4, 4 + vfs)]
    )
    functions = tuple(GpuFunction(a, f"/sys/bus/pci/devices/{a}", driver="nvidia") for a in addresses)
    pool = way.startswith("pool")
    gpu = Gpu(
        address,
        f"/sys/bus/pci/devices/{address}",
        "Pool" if pool else "X",
        "nvidia",
        backend,
        GpuMode.VGPU,
        vendor_id="19e5" if pool else NVIDIA_VENDOR_ID,
        functions=functions,
        types=() if way == "plain VFs and whole GPUs" else types,
        has_single_type=way == "one type at a time",
        mixed_size=True if way == "mixed sizes" and random.random() < 0.9 else random.choice((None, False)),
    )
    return replace(gpu, mig=_mig(types, random)) if "GPU instance" in way else gpu


def _mig(types: Sequence[VgpuType], random: Random) -> MigState:
    ids = sorted({t.gi_profile_id for t in types if t.gi_profile_id is not None})
    enabled = random.random() < 0.9
    several = any((t.max_per_gi or 1) > 1 for t in types)
    chosen = [random.choice(ids) for _ in range(random.randint(0, 3 if several else 6))]
    return MigState(
        enabled,
        enabled,
        tuple(GiProfile(i, f"{i}g", 1, 1024, 7, ()) for i in ids),
        tuple(GpuInstance(n + 3, i, PlacementSpan(n, 1)) for n, i in enumerate(chosen)) if enabled else (),
    )


def _whole_devices(gpu: Gpu, random: Random) -> list[Vgpu]:
    """Give away some plain VFs, or the whole GPU."""
    if gpu.backend is Backend.PASSTHROUGH or random.random() < 0.1:
        return [_whole(gpu)] if random.random() < 0.5 else []
    used = [f for f in gpu.functions if random.random() < 0.4]
    return [_vgpu(gpu, None, n, f.address, present=random.random() < 0.6) for n, f in enumerate(used)]


def _with_broken_vfs(gpu: Gpu, vgpus: Sequence[Vgpu], random: Random) -> Gpu:
    """Return a GPU with plain VFs some of which cannot be used."""
    broken = {f.address for f in gpu.functions if random.random() < 0.15}
    return replace(
        gpu,
        functions=tuple(replace(f, problem="no IOMMU group") if f.address in broken else f for f in gpu.functions),
    )


def _whole(gpu: Gpu) -> Vgpu:
    return replace(_vgpu(gpu, None, 0, gpu.address), carrier=gpu.address, backend=Backend.PASSTHROUGH)


def _vgpu(gpu: Gpu, vgpu_type: VgpuType | None, number: int, function: str, **more: Any) -> Vgpu:
    vm = {"vm": f"vm-{gpu.address[5:7]}-{number}"}
    values: dict[str, Any] = {"present": True, "backend": gpu.backend, **vm, **more}
    if vgpu_type is not None:
        values |= {name: getattr(vgpu_type, name) for name in ("type_id", "profile", "framebuffer_mib")}
    carrier = f"{gpu.address}-{number}" if gpu.backend in (Backend.MDEV_PF, Backend.MDEV_VF) else function
    if function == gpu.address and gpu.backend is not Backend.MDEV_PF:
        carrier = gpu.address
    return Vgpu(carrier, gpu.address, function, Ownership.MANAGED, **values)


def _fill(gpu: Gpu, random: Random) -> tuple[Gpu, list[Vgpu]]:
    """Create vGPUs one by one where the rules allow it, and report what the driver does after that."""
    crowd = any((t.max_per_gpu or 0) > 30 for t in gpu.types)
    on_pf = gpu.backend is Backend.MDEV_PF
    units = tuple((t.profile, t.pool_units or 0) for t in gpu.types)
    full = random.randint(2, 9)
    shown = all(t.pool_units for t in gpu.types) or gpu.vendor_id == NVIDIA_VENDOR_ID
    if not shown:
        units = tuple((t.profile, int(t.framebuffer_mib or 0) // 1024) for t in gpu.types)
        full = min(random.choice((full, 99)), 4 * min(n for _, n in units) - 1)  # so that no number is over 3
    layout = Layout(left=full, units=units)
    recorded_part = random.choice((0, 0.3, 0.7))
    recorded_left = full
    vgpus: list[Vgpu] = []
    free = list(gpu.functions)
    random.shuffle(free)
    most = random.randint(29, 32) if crowd else random.choice((0, 0, 1, 1, 2, 3, 4))
    profile_weights = [random.random() for _ in gpu.types]
    if crowd and gpu.mixed_size:
        profile_weights = [1.0, 0.0]  # else too many places are left to try each
    recorded_number = 0
    for number in range(most):
        vgpu_type = random.choices(gpu.types, profile_weights)[0]
        options = sorted(set(put(gpu, layout, vgpu_type.profile)), key=str)
        if not options or not (free or on_pf):
            continue
        after = random.choice(options)
        (covers,) = [p.covers for p in _new(after.placed, layout.placed)]
        layout = after
        present = random.random() >= recorded_part or recorded_number >= 3 or _has_lower_maximum(gpu, vgpu_type)
        recorded_number += not present
        place: dict[str, Any] = {"needs_device": not present and random.random() < 0.5}
        if gpu.mixed_size:
            place["placement_id"] = covers[0]
        elif covers:
            place["gi_id"] = covers[0]
        function = gpu.functions[0] if on_pf else free.pop()
        vgpus.append(_vgpu(gpu, vgpu_type, number, function.address, present=present, **place))
        recorded_left -= dict(units).get(vgpu_type.profile, 0) if present else 0
    return _reported(gpu, vgpus, Layout(left=recorded_left, units=units), random), vgpus


def _has_lower_maximum(gpu: Gpu, vgpu_type: VgpuType) -> bool:
    """Return whether another type of the same size has a higher maximum in a GPU instance.

    Such a vGPU that is only recorded is counted as if it were created first. If enough of the other type are created
    before it, the driver refuses it. No such types are known, so the hosts have none.
    """
    same = [t for t in gpu.types if t.framebuffer_mib == vgpu_type.framebuffer_mib]
    return any((t.max_per_gi or 0) > (vgpu_type.max_per_gi or 0) for t in same)


def _new(after: Sequence[Any], before: Sequence[Any]) -> list[Any]:
    rest = list(after)
    for placed in before:
        rest.remove(placed)
    return rest


def _reported(gpu: Gpu, vgpus: Sequence[Vgpu], empty: Layout, random: Random) -> Gpu:
    """Return the GPU with what its driver lists beside the vGPUs that are created."""
    created = [v for v in vgpus if v.present]
    layout = empty
    for vgpu in created:
        at = vgpu.placement_id if gpu.mixed_size else vgpu.gi_id
        options = list(put(gpu, layout._replace(left=99), str(vgpu.profile)))
        options = [a for a in options if at is None or at in [p.covers[0] for p in _new(a.placed, layout.placed)]]
        layout = options[0]._replace(left=empty.left)
    numbers = {t.type_id: _number(gpu, layout, t, random) for t in gpu.types}
    functions = []
    on_pf = gpu.backend is Backend.MDEV_PF
    for function in gpu.functions:
        own = [v for v in created if v.function == function.address]
        if random.random() < (0.03 if on_pf else 0.12):
            listed = None if random.random() < 0.5 else numbers
            functions.append(replace(function, problem="something is wrong", available_instances=listed))
        elif on_pf:
            functions.append(replace(function, available_instances=numbers, mdevs=_mdevs(own)))
        elif own:
            device = {"mdevs": _mdevs(own)} if gpu.backend is Backend.MDEV_VF else {"current_type": own[0].type_id}
            functions.append(replace(function, available_instances={}, **device))
        else:
            listed = {i: 1 for i, number in numbers.items() if number}
            not_ready = random.random() < 0.04
            functions.append(replace(function, available_instances={} if not_ready else listed))
    return replace(gpu, functions=tuple(functions))


def _mdevs(vgpus: Sequence[Vgpu]) -> tuple[Mdev, ...]:
    return tuple(Mdev(v.carrier, str(v.type_id)) for v in vgpus)


def _number(gpu: Gpu, layout: Layout, vgpu_type: VgpuType, random: Random) -> int:
    """Return how many of a type a driver offers: on a PF a number, on a VF only whether one more fits."""
    if not places(gpu, layout, vgpu_type):
        return 0
    if gpu.backend is not Backend.MDEV_PF:
        return 1
    if gpu.vendor_id != NVIDIA_VENDOR_ID:
        return layout.left // dict(layout.units)[vgpu_type.profile]
    return max(0, (vgpu_type.max_per_gpu or 5) - len(layout.placed)) + random.choice((0, 0, 0, 2))


def _hide(gpu: Gpu, vgpus: list[Vgpu], random: Random) -> tuple[Gpu, list[Vgpu]]:
    """Hide some of the truth: places, instances, types; and let some vGPUs be about to move."""
    if gpu.mixed_size and random.random() < 0.15:
        gpu = replace(gpu, has_fixed_placements=True)
    if gpu.mig is not None and random.random() < 0.15:
        gpu = replace(gpu, has_fixed_placements=True)
    if driver_chooses_instances(gpu, ()) and any(v.present for v in vgpus):
        # A driver that chooses puts a new vGPU in the lowest instance with room, and may take the last one
        # for a recorded vGPU of another size; the number does not count that. So the hosts have none beside devices.
        vgpus = [v for v in vgpus if v.present]
    crowd = any((t.max_per_gpu or 0) > 30 for t in gpu.types)  # too many places to try each
    chance = random.choice((0, 0, 0.4, 0.8)) if not crowd else 0
    if gpu.mixed_size and not crowd and random.random() < 0.1:
        number = len(gpu.types)
        gpu = replace(gpu, types=(*gpu.types, replace(gpu.types[0], **_dark(number))))
    if gpu.mixed_size and not chance and not crowd and vgpus and random.random() < 0.2:
        vgpus[0] = _about_to_move(gpu, vgpus, random)
    return gpu, [_hidden(gpu, v, chance, random) for v in vgpus]


def _dark(number: int) -> dict[str, Any]:
    """Return what makes another type of one: a type of which the driver reports no placements."""
    profile = f"X-{number}D"
    return {"type_id": str(600 + number), "name": profile, "profile": profile, "placement_ids": None}


def _about_to_move(gpu: Gpu, vgpus: Sequence[Vgpu], random: Random) -> Vgpu:
    """Return the first vGPU with another place to which it moves, where there is one."""
    (layout,) = list_layouts(gpu, vgpus)
    free = places(gpu, layout, next(t for t in gpu.types if t.profile == vgpus[0].profile))
    target = random.choice(free)[0] if free and vgpus[0].present else None
    return replace(vgpus[0], target_placement_id=target)


def _hidden(gpu: Gpu, vgpu: Vgpu, chance: float, random: Random) -> Vgpu:
    if gpu.mig is not None and gpu.mig.enabled:
        untold = not vgpu.present or (not gpu.accepts_gpu_instances and random.random() < 0.5)
        vgpu = replace(vgpu, gi_id=None) if untold else vgpu
    elif gpu.mixed_size and random.random() < chance:
        vgpu = replace(vgpu, placement_id=None)
    if random.random() < 0.03 and vgpu.present:
        return replace(vgpu, type_id="4711", profile=None, framebuffer_mib=None)
    if not vgpu.present and random.random() < 0.3:
        vgpu = replace(vgpu, type_id=None)
        if gpu.vendor_id == NVIDIA_VENDOR_ID and not gpu.mixed_size and gpu.mig is None and random.random() < 0.3:
            return replace(vgpu, profile="X-9Q")  # its driver has this profile no longer
    return vgpu


def _restricted(gpu: Gpu, random: Random) -> Gpu:
    """Return the GPU with what host.yaml may say of it."""
    if random.random() < 0.15 and gpu.types:
        allowed = random.sample([t.profile for t in gpu.types], random.randint(1, len(gpu.types)))
        gpu = replace(gpu, allowed_profiles=tuple(allowed))
    if random.random() < 0.05:
        gpu = replace(gpu, cordoned=True)
    if random.random() < 0.1:
        gpu = replace(gpu, desired_mode=random.choice((GpuMode.VGPU, GpuMode.PASSTHROUGH, GpuMode.UNMANAGED)))
    return gpu


def paste(value: object) -> str:
    """Return a value as Python that makes it again, without what is a default."""
    if isinstance(value, Value):
        fields = ((name, getattr(value, name)) for name in value._fields)
        shown = [f"{n}={paste(v)}" for n, v in fields if n not in type(value).__dict__ or type(value).__dict__[n] != v]
        return f"{type(value).__name__}({', '.join(shown)})"
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{paste(k)}: {paste(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{paste(v)}, " for v in value) + ")"
    return repr(value)
