# SPDX-License-Identifier: Apache-2.0
"""Turn what other programs keep into a host.yaml for this host, and say of each part that is left out, why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.model.address import address_key, is_pci, normal_pci
from vgpuctl.model.gpu import NVIDIA, Gpu
from vgpuctl.model.partition import MigSpec
from vgpuctl.model.profile_name import parse_name
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.spec import rules
from vgpuctl.spec.foreign import Carving, Definition, Foreign
from vgpuctl.spec.gpus import ALL
from vgpuctl.spec.host import VERSION, GpuSpec, HostSpec, VgpuSpec
from vgpuctl.value import NOTHING, Value, replace


class Imported(Value):
    """A host.yaml, and a sentence for each part that it cannot say, with its place."""

    host: HostSpec
    left_out: tuple[str, ...]


def imported(foreign: Foreign, snapshot: Snapshot) -> Imported:
    """Return the host.yaml of what was read.

    Raises:
        NotFound: it names a GPU, or a type of vGPU, that is not on this host.
        InvalidInput: it says two things of one GPU.
    """
    left: list[str] = []
    vgpus = _vgpus(foreign.definitions, snapshot, left)
    gpus: dict[str, GpuSpec] = {}
    for one in foreign.carvings:
        left += [f"{one.where}: {text}" for text in one.unsaid]
        if one.mig is not None:
            _partition(one, one.mig, _with_mig(one, snapshot), gpus)
        _carve(one, snapshot, gpus, left)
    return Imported(HostSpec(VERSION, gpus=gpus or NOTHING, vgpus=vgpus or NOTHING), tuple(left))


def _vgpus(definitions: Sequence[Definition], snapshot: Snapshot, left: list[str]) -> dict[str, VgpuSpec]:
    """Return the vGPUs by the beginning of their UUIDs, or by all of it where two begin alike."""
    found = [entry for one in definitions if (entry := _vgpu(one, snapshot, left)) is not None]
    alike = Counter(entry.carrier[:8] for entry in found)
    return {f"mdev-{v.carrier[:8] if alike[v.carrier[:8]] == 1 else v.carrier}": v for v in found}


def _vgpu(one: Definition, snapshot: Snapshot, left: list[str]) -> VgpuSpec | None:
    if not one.auto:
        left.append(f"{one.where}: {one.uuid} is not started at boot; every vGPU of host.yaml is")
        return None
    parent = normal_pci(one.parent)
    if parent is None:
        left.append(f"{one.where}: {one.uuid} is on {one.parent}, and host.yaml names GPUs by PCI address")
        return None
    gpu = next((g for g in snapshot.gpus if g.address == parent or g.function_at(parent) is not None), None)
    if gpu is None:
        raise NotFound(
            f"{one.where}: its parent {parent} is not on this host",
            hint="run this on the host of the definitions, with its virtual functions on",
            parent=parent,
        )
    left += [f"{one.where}: the attribute {name} is not set by vgpuctl" for name in one.others]
    return VgpuSpec(_profile(one, gpu), gpu.address, one.uuid, _params(one))


def _profile(one: Definition, gpu: Gpu) -> str:
    known = gpu.type_of(one.type_id)
    if known is None:
        raise NotFound(
            f"{one.where}: {gpu.address} ({gpu.model}) has no vGPU type {one.type_id}",
            hint=f"types may be numbered anew by another driver; vgpuctl show-gpu {gpu.address} lists them",
            gpu=gpu.address,
            type_id=one.type_id,
        )
    return known.profile


def _params(one: Definition) -> dict[str, str]:
    try:
        return rules.vgpu_params([pair for pair in one.params.split(",") if pair])
    except ValueError as error:
        raise InvalidInput(f"{one.where}: nvidia/vgpu_params: {error}") from error


def _carve(one: Carving, snapshot: Snapshot, gpus: dict[str, GpuSpec], left: list[str]) -> None:
    """Say of the GPUs of an entry which profiles are allowed there, and of those with MIG how it is partitioned."""
    _carve_instances(one, snapshot, gpus, left)
    profiles = tuple(sorted(p for p, _ in one.vgpus if not _on_instance(p)))
    if not profiles:
        return
    left.append(
        f"{one.where}: how many of {', '.join(profiles)}: they are made when somebody asks (create-vm, create-vgpu)"
    )
    for key in _keys(one, snapshot):
        known = gpus.get(key, GpuSpec())
        merged = tuple(sorted({*profiles, *(known.profiles or ())}))
        gpus[key] = replace(known, mode="vgpu", profiles=merged)


def _carve_instances(one: Carving, snapshot: Snapshot, gpus: dict[str, GpuSpec], left: list[str]) -> None:
    """Have MIG on where an entry of vgpu-device-manager wants vGPUs that run in GPU instances."""
    sliced = tuple((p, n) for p, n in one.vgpus if _on_instance(p))
    counted = tuple((p, n) for p, n in sliced if n)
    able = [g for g in _chosen(one, snapshot) if g.mig is not None]
    if sliced and (len(counted) != len(sliced) or not able):
        why = "no GPU here is known to have MIG" if not able else "how many GPU instances it needs is not said"
        left += [f"{one.where}: {profile} runs in a GPU instance, and {why}" for profile, _ in sliced]
    elif sliced:
        _partition(one, MigSpec(vgpus=counted), tuple(g.address for g in able), gpus)


def _partition(one: Carving, mig: MigSpec, keys: tuple[str, ...], gpus: dict[str, GpuSpec]) -> None:
    """Say how GPUs are partitioned; MIG goes with the mode vgpu.

    Raises:
        InvalidInput: another entry says something else of one of them.
    """
    for key in keys:
        known = gpus.get(key, GpuSpec())
        if known.mig not in (None, mig):
            raise InvalidInput(
                f"{one.where}: another entry before says otherwise how {key} is partitioned",
                hint="import a configuration in which each GPU has one entry, with --config NAME",
                gpu=key,
            )
        gpus[key] = replace(known, mode="vgpu", mig=mig)


def _with_mig(one: Carving, snapshot: Snapshot) -> tuple[str, ...]:
    """Return how host.yaml names the GPUs of an entry that have MIG; all of them where that is not known of any."""
    chosen = _chosen(one, snapshot)
    able = tuple(g.address for g in chosen if g.mig is not None)
    return _keys(one, snapshot) if len(able) in (0, len(chosen)) else able


def _on_instance(profile: str) -> bool:
    """Say whether a profile is one of NVIDIA's with a number of slices, as A100-1-5C."""
    name = parse_name(profile)
    return name is not None and name.slices > 0


def _keys(one: Carving, snapshot: Snapshot) -> tuple[str, ...]:
    """Return how host.yaml names the GPUs of an entry: `all`, or their addresses, in NVIDIA's order of numbers.

    Raises:
        NotFound: there is no GPU of that number.
    """
    others = [g for g in snapshot.gpus if g.display_class and is_pci(g.address) and g.vendor_id != NVIDIA]
    if one.indexes is None and not one.device_ids and not others:
        return (ALL,)
    return tuple(g.address for g in _chosen(one, snapshot))


def _chosen(one: Carving, snapshot: Snapshot) -> tuple[Gpu, ...]:
    """Return the GPUs of an entry, in NVIDIA's order of numbers.

    Raises:
        NotFound: there is no GPU of that number.
    """
    found = [g for g in snapshot.gpus if g.display_class and is_pci(g.address) and g.vendor_id == NVIDIA]
    mine = sorted(found, key=lambda g: address_key(g.address))
    missing = [number for number in one.indexes or () if number >= len(mine)]
    if missing:
        raise NotFound(
            f"{one.where}: there is no GPU number {missing[0]}: this host has {len(mine)} of NVIDIA's",
            hint="run this on the host of the file",
            index=missing[0],
        )
    chosen = mine if one.indexes is None else [mine[number] for number in one.indexes]
    wanted = {text.lower() for text in one.device_ids}
    return tuple(g for g in chosen if not wanted or f"0x{g.device_id}{g.vendor_id}".lower() in wanted)
