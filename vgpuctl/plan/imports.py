# SPDX-License-Identifier: Apache-2.0
"""Turn what other programs keep into a host.yaml for this host, and say of each part that is left out, why."""

from __future__ import annotations

from vgpuctl.capacity.profiles import parse_name
from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.model.address import address_key, is_pci, normal_pci
from vgpuctl.model.gpu import NVIDIA, Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.spec import rules
from vgpuctl.spec.foreign import Carving, Definition, Foreign
from vgpuctl.spec.gpus import ALL
from vgpuctl.spec.host import VERSION, GpuSpec, HostSpec, VgpuSpec
from vgpuctl.value import NOTHING, Value


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
    vgpus = dict(entry for one in foreign.definitions if (entry := _vgpu(one, snapshot, left)) is not None)
    gpus: dict[str, GpuSpec] = {}
    for one in foreign.carvings:
        if one.mig is not None:
            left.append(_without_mig(one))
            continue
        _carve(one, snapshot, gpus, left)
    return Imported(HostSpec(VERSION, gpus=gpus or NOTHING, vgpus=vgpus or NOTHING), tuple(left))


def _vgpu(one: Definition, snapshot: Snapshot, left: list[str]) -> tuple[str, VgpuSpec] | None:
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
    name = f"mdev-{one.uuid[:8]}"
    return name, VgpuSpec(_profile(one, gpu), gpu.address, one.uuid, _params(one))


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


def _without_mig(one: Carving) -> str:
    if one.mig == "off":
        return f"{one.where}: MIG is to be off, of which host.yaml says nothing"
    return f"{one.where}: MIG with {one.mig}: host.yaml has no key for GPU instances; set them with nvidia-smi mig"


def _carve(one: Carving, snapshot: Snapshot, gpus: dict[str, GpuSpec], left: list[str]) -> None:
    sliced = [p for p in one.profiles if _on_instance(p)]
    profiles = tuple(sorted(p for p in one.profiles if not _on_instance(p)))
    left += [f"{one.where}: {profile} needs a GPU instance, of which host.yaml says nothing" for profile in sliced]
    if not profiles:
        return
    left.append(
        f"{one.where}: how many of {', '.join(profiles)}: they are made when somebody asks (create-vm, create-vgpu)"
    )
    for key in _keys(one, snapshot):
        known = gpus.get(key)
        merged = tuple(sorted({*profiles, *((known.profiles or ()) if known is not None else ())}))
        gpus[key] = GpuSpec("vgpu", profiles=merged)


def _on_instance(profile: str) -> bool:
    """Say whether a profile is one of NVIDIA's with a number of slices, as A100-1-5C."""
    return parse_name(profile) is not None and profile.count("-") > 1


def _keys(one: Carving, snapshot: Snapshot) -> tuple[str, ...]:
    """Return how host.yaml names the GPUs of an entry: `all`, or their addresses, in NVIDIA's order of numbers.

    Raises:
        NotFound: there is no GPU of that number.
    """
    all_gpus = [g for g in snapshot.gpus if g.display_class and is_pci(g.address)]
    mine = sorted((g for g in all_gpus if g.vendor_id == NVIDIA), key=lambda g: address_key(g.address))
    if one.indexes is None and not one.device_ids and len(mine) == len(all_gpus):
        return (ALL,)
    missing = [number for number in one.indexes or () if number >= len(mine)]
    if missing:
        raise NotFound(
            f"{one.where}: there is no GPU number {missing[0]}: this host has {len(mine)} of NVIDIA's",
            hint="run this on the host of the file",
            index=missing[0],
        )
    chosen = mine if one.indexes is None else [mine[number] for number in one.indexes]
    wanted = {text.lower() for text in one.device_ids}
    return tuple(g.address for g in chosen if not wanted or f"0x{g.device_id}{g.vendor_id}".lower() in wanted)
