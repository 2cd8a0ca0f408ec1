# SPDX-License-Identifier: Apache-2.0
"""Convert the configuration of other programs to a host.yaml for this host, and explain each omitted part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vgpuctl.config import rules
from vgpuctl.config.gpu_entries import ALL_GPUS
from vgpuctl.config.host_spec import FORMAT_VERSION, GpuSpec, HostSpec, VgpuSpec
from vgpuctl.config.import_formats import DeviceConfig, ImportedConfig, MdevDefinition
from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.makers import maker_of
from vgpuctl.model.address import address_sort_key, is_pci_address, normalize_pci
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.mig import MigSpec
from vgpuctl.model.profile_name import parse_profile_name
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.value import EMPTY_MAPPING, Value, replace


class ImportResult(Value):
    """A host.yaml, and a sentence with a position for each part that it cannot express."""

    host_spec: HostSpec
    left_out: tuple[str, ...]


def convert_import(imported_config: ImportedConfig, snapshot: Snapshot) -> ImportResult:
    """Return the host.yaml for an imported configuration.

    Raises:
        NotFound: it names a GPU, or a type of vGPU, that is not on this host.
        InvalidInput: it has two contradictory settings for one GPU.
    """
    left_out: list[str] = []
    vgpus = _convert_definitions(imported_config.definitions, snapshot, left_out)
    gpus: dict[str, GpuSpec] = {}
    for device_config in imported_config.device_configs:
        left_out += [f"{device_config.position}: {text}" for text in device_config.unsupported]
        if device_config.mig is not None:
            _set_mig(device_config, device_config.mig, _mig_gpu_keys(device_config, snapshot), gpus)
        _add_profiles(device_config, snapshot, gpus, left_out)
    return ImportResult(
        HostSpec(FORMAT_VERSION, gpus=gpus or EMPTY_MAPPING, vgpus=vgpus or EMPTY_MAPPING), tuple(left_out)
    )


def _convert_definitions(
    definitions: Sequence[MdevDefinition], snapshot: Snapshot, left_out: list[str]
) -> dict[str, VgpuSpec]:
    """Return the vGPUs, named by the first 8 characters of their UUIDs, or by the whole UUID where two share those."""
    entries = [
        spec for definition in definitions if (spec := _convert_definition(definition, snapshot, left_out)) is not None
    ]
    prefix_counts = Counter(spec.carrier[:8] for spec in entries)
    return {f"mdev-{v.carrier[:8] if prefix_counts[v.carrier[:8]] == 1 else v.carrier}": v for v in entries}


def _convert_definition(definition: MdevDefinition, snapshot: Snapshot, left_out: list[str]) -> VgpuSpec | None:
    if not definition.auto:
        left_out.append(
            f"{definition.position}: {definition.uuid} is not started at boot, but every vGPU of host.yaml is"
        )
        return None
    parent = normalize_pci(definition.parent)
    if parent is None:
        left_out.append(
            f"{definition.position}: {definition.uuid} is on {definition.parent}, and host.yaml names GPUs "
            "by PCI address"
        )
        return None
    gpu = next((g for g in snapshot.gpus if g.address == parent or g.find_function(parent) is not None), None)
    if gpu is None:
        raise NotFound(
            f"{definition.position}: its parent {parent} is not on this host",
            hint="run this on the host that has these definitions, with its virtual functions on",
            parent=parent,
        )
    left_out += [
        f"{definition.position}: vgpuctl does not set the attribute {name}" for name in definition.other_attributes
    ]
    return VgpuSpec(_find_profile(definition, gpu), gpu.address, definition.uuid, _parse_params(definition))


def _find_profile(definition: MdevDefinition, gpu: Gpu) -> str:
    vgpu_type = gpu.find_type(definition.type_id)
    if vgpu_type is None:
        raise NotFound(
            f"{definition.position}: {gpu.address} ({gpu.model}) has no vGPU type {definition.type_id}",
            hint=f"vgpuctl show-gpu {gpu.address} lists the types; another driver may number them differently",
            gpu=gpu.address,
            type_id=definition.type_id,
        )
    return vgpu_type.profile


def _parse_params(definition: MdevDefinition) -> dict[str, str]:
    try:
        return rules.vgpu_params([pair for pair in definition.params.split(",") if pair])
    except ValueError as error:
        raise InvalidInput(f"{definition.position}: nvidia/vgpu_params: {error}") from error


def _add_profiles(
    device_config: DeviceConfig, snapshot: Snapshot, gpus: dict[str, GpuSpec], left_out: list[str]
) -> None:
    """Set the allowed profiles of an entry's GPUs, and the partitioning of those with MIG."""
    _add_mig_profiles(device_config, snapshot, gpus, left_out)
    profiles = tuple(sorted(p for p, _ in device_config.vgpus if not _is_mig_profile(p)))
    if not profiles:
        return
    left_out.append(
        f"{device_config.position}: the number of {', '.join(profiles)}: vgpuctl creates them on request "
        "(create-vm, create-vgpu)"
    )
    for key in _gpu_keys(device_config, snapshot):
        spec = gpus.get(key, GpuSpec())
        merged = tuple(sorted({*profiles, *(spec.profiles or ())}))
        gpus[key] = replace(spec, mode="vgpu", profiles=merged)


def _add_mig_profiles(
    device_config: DeviceConfig, snapshot: Snapshot, gpus: dict[str, GpuSpec], left_out: list[str]
) -> None:
    """Enable MIG where an entry of vgpu-device-manager requests vGPUs that run in GPU instances."""
    mig_profiles = tuple((p, n) for p, n in device_config.vgpus if _is_mig_profile(p))
    counted = tuple((p, n) for p, n in mig_profiles if n)
    mig_gpus = [g for g in _select_gpus(device_config, snapshot) if g.mig is not None]
    if mig_profiles and (len(counted) != len(mig_profiles) or not mig_gpus):
        reason = "no GPU here is known to have MIG" if not mig_gpus else "the number of GPU instances is not specified"
        left_out += [
            f"{device_config.position}: {profile} runs in a GPU instance, and {reason}" for profile, _ in mig_profiles
        ]
    elif mig_profiles:
        _set_mig(device_config, MigSpec(vgpus=counted), tuple(g.address for g in mig_gpus), gpus)


def _set_mig(device_config: DeviceConfig, mig: MigSpec, keys: tuple[str, ...], gpus: dict[str, GpuSpec]) -> None:
    """Set the partitioning of GPUs; MIG requires the mode vgpu.

    Raises:
        InvalidInput: another entry sets another partitioning for one of them.
    """
    for key in keys:
        spec = gpus.get(key, GpuSpec())
        if spec.mig not in (None, mig):
            raise InvalidInput(
                f"{device_config.position}: an earlier entry partitions {key} differently",
                hint="import a configuration in which each GPU has one entry, with --config NAME",
                gpu=key,
            )
        gpus[key] = replace(spec, mode="vgpu", mig=mig)


def _mig_gpu_keys(device_config: DeviceConfig, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the host.yaml keys of an entry's GPUs that have MIG; of all its GPUs if that is unknown of each."""
    chosen = _select_gpus(device_config, snapshot)
    mig_keys = tuple(g.address for g in chosen if g.mig is not None)
    return _gpu_keys(device_config, snapshot) if len(mig_keys) in (0, len(chosen)) else mig_keys


def _is_mig_profile(profile: str) -> bool:
    """Say whether a profile is one of NVIDIA's with a number of slices, such as A100-1-5C."""
    name = parse_profile_name(profile)
    return name is not None and name.mig_slices > 0


def _gpu_keys(device_config: DeviceConfig, snapshot: Snapshot) -> tuple[str, ...]:
    """Return the host.yaml keys of an entry's GPUs: `all`, or their addresses, in NVIDIA's index order.

    Raises:
        NotFound: there is no GPU with that index.
    """
    others = [g for g in snapshot.gpus if g.is_display_class and is_pci_address(g.address) and not maker_of(g).has_nvml]
    if device_config.indexes is None and not device_config.device_filter and not others:
        return (ALL_GPUS,)
    return tuple(g.address for g in _select_gpus(device_config, snapshot))


def _select_gpus(device_config: DeviceConfig, snapshot: Snapshot) -> tuple[Gpu, ...]:
    """Return an entry's GPUs in NVIDIA's index order.

    Raises:
        NotFound: there is no GPU with that index.
    """
    nvidia_gpus = [
        g for g in snapshot.gpus if g.is_display_class and is_pci_address(g.address) and maker_of(g).has_nvml
    ]
    ordered = sorted(nvidia_gpus, key=lambda g: address_sort_key(g.address))
    missing_indexes = [number for number in device_config.indexes or () if number >= len(ordered)]
    if missing_indexes:
        raise NotFound(
            f"{device_config.position}: there is no GPU number {missing_indexes[0]}: this host has "
            f"{len(ordered)} NVIDIA GPUs",
            hint="run this on the host that the file describes",
            index=missing_indexes[0],
        )
    chosen = ordered if device_config.indexes is None else [ordered[number] for number in device_config.indexes]
    device_ids = {text.lower() for text in device_config.device_filter}
    return tuple(g for g in chosen if not device_ids or f"0x{g.device_id}{g.vendor_id}".lower() in device_ids)
