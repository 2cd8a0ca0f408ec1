# SPDX-License-Identifier: Apache-2.0
"""Convert another program's files to the text of a host.yaml; writes nothing.

What the files say is checked against the GPUs that this host has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.config import rules
from vgpuctl.config.host_editor import render_host_file
from vgpuctl.config.host_spec import ALL_GPUS, FORMAT_VERSION, GpuSpec, HostSpec, VgpuSpec
from vgpuctl.config.import_formats import DeviceConfig, ImportedConfig, MdevDefinition
from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.gpu.offered_profiles import can_offer, has_no_name, suggest_offered
from vgpuctl.gpu.profiles import matches_type
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import Gpu, MigSpec
from vgpuctl.model.names import address_sort_key, is_pci_address, normalize_pci, parse_profile_name
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.host import ImportedResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.observe import ReadScope, observe
from vgpuctl.value import EMPTY_MAPPING, Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


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
            _set_mig(device_config, device_config.mig, _mig_gpus(device_config, snapshot, left_out), gpus)
        _add_profiles(device_config, snapshot, gpus, left_out)
    gpus = {address: _usable_spec(snapshot, address, spec, left_out) for address, spec in gpus.items()}
    if not any(c.device_filter or c.indexes is not None for c in imported_config.device_configs):
        gpus = _named_all(gpus, snapshot)
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
    """Set the allowed profiles of an entry's GPUs, and the partitioning of those with MIG.

    Each GPU gets the profiles that it can offer: vgpu-device-manager's default names those of many models in one entry.
    """
    selected = _select_gpus(device_config, snapshot)
    selected = tuple(g for g in selected if not has_no_name(g)) or selected  # what a nameless GPU offers is unknown
    mig_profiles = tuple((p, n) for p, n in device_config.vgpus if _is_mig_profile(p))
    plain = tuple(sorted(p for p, _ in device_config.vgpus if not _is_mig_profile(p)))
    unoffered = [p for p in plain if selected and all(can_offer(g, p) is False for g in selected)]
    left_out += [f"{device_config.position}: {_not_offered(p, selected)}" for p in unoffered]
    kept = [p for p in plain if p not in unoffered]
    _add_mig_profiles(device_config, mig_profiles, selected, gpus, left_out)
    if not kept:
        return
    left_out.append(
        f"{device_config.position}: the number of {', '.join(kept)}: vgpuctl creates them on request "
        "(create-vm, create-vgpu)"
    )
    for gpu in selected:
        profiles = {p for p in kept if can_offer(gpu, p) is not False}
        if profiles:
            spec = gpus.get(gpu.address, GpuSpec())
            gpus[gpu.address] = replace(spec, mode="vgpu", profiles=tuple(sorted({*profiles, *(spec.profiles or ())})))


def _not_offered(profile: str, selected: Sequence[Gpu]) -> str:
    subject = f"{selected[0].address} cannot" if len(selected) == 1 else "none of its GPUs can"
    return f"{profile}: {subject} offer it{suggest_offered(profile, selected)}"


def _add_mig_profiles(
    device_config: DeviceConfig,
    mig_profiles: tuple[tuple[str, int | None], ...],
    selected: tuple[Gpu, ...],
    gpus: dict[str, GpuSpec],
    left_out: list[str],
) -> None:
    """Enable MIG where an entry of vgpu-device-manager requests vGPUs that run in GPU instances."""
    if not mig_profiles:
        return
    able = tuple(g for g in selected if g.mig is not None)
    if not able:
        left_out += [
            f"{device_config.position}: {profile} runs in a GPU instance, and no GPU here is known to have MIG"
            for profile, _ in mig_profiles
        ]
        return
    offered = [(p, n) for p, n in mig_profiles if any(can_offer(g, p) is not False for g in able)]
    left_out += [f"{device_config.position}: {_not_offered(p, able)}" for p, n in mig_profiles if (p, n) not in offered]
    if any(not n for _, n in offered):
        left_out += [
            f"{device_config.position}: {profile} runs in a GPU instance, and the number of GPU instances is not "
            "specified"
            for profile, _ in offered
        ]
        return
    for gpu in able:
        vgpus = tuple((p, n) for p, n in offered if n and can_offer(gpu, p) is not False)
        if vgpus:
            _set_mig(device_config, MigSpec(vgpus=vgpus), (gpu.address,), gpus)


def _set_mig(device_config: DeviceConfig, mig: MigSpec, addresses: tuple[str, ...], gpus: dict[str, GpuSpec]) -> None:
    """Set the partitioning of GPUs; MIG requires the mode vgpu.

    Raises:
        InvalidInput: another entry sets another partitioning for one of them.
    """
    for address in addresses:
        spec = gpus.get(address, GpuSpec())
        if spec.mig not in (None, mig):
            raise InvalidInput(
                f"{device_config.position}: an earlier entry partitions {address} differently",
                hint="import a configuration in which each GPU has one entry, with --config NAME",
                gpu=address,
            )
        gpus[address] = replace(spec, mode="vgpu", mig=mig)


def _mig_gpus(device_config: DeviceConfig, snapshot: Snapshot, left_out: list[str]) -> tuple[str, ...]:
    """Return the addresses of an entry's GPUs that have MIG with its instances; all of them if MIG is unknown of each.

    What a GPU does not have is left out, with its place.
    """
    chosen = _select_gpus(device_config, snapshot)
    able = tuple(g for g in chosen if g.mig is not None) or chosen
    instances = device_config.mig.instances if device_config.mig is not None else ()
    kept: list[str] = []
    for gpu in able:
        offered = gpu.mig.profiles if gpu.mig is not None else ()
        known = {name for p in offered for name in (p.name, str(p.profile_id))}
        missing = sorted(set(instances) - known) if known else []
        if missing:
            left_out.append(
                f"{device_config.position}: {gpu.address} has no GPU instance profile {', '.join(missing)}; "
                f"it has {', '.join(p.name for p in offered)}"
            )
        else:
            kept.append(gpu.address)
    return tuple(kept)


def _usable_spec(snapshot: Snapshot, address: str, spec: GpuSpec, left_out: list[str]) -> GpuSpec:
    """Return the settings of a GPU with what its profiles need together: MIG, or vGPUs of several sizes at once."""
    gpu = snapshot.gpu(address)
    profiles = spec.profiles or ()
    if gpu is None or not profiles:
        return spec
    if spec.mig is not None and spec.mig != MigSpec():
        left_out.append(f"{address}: {', '.join(profiles)}: not offered while MIG is on, as this file requests there")
        return replace(spec, profiles=None)
    sizes = {_size_text(gpu, profile) for profile in profiles}
    if len(profiles) > 1 and gpu.has_single_type:
        left_out.append(f"{address}: {', '.join(profiles)} at once: its driver takes vGPUs of one profile at a time")
    elif len(sizes) > 1 and gpu.mixed_size is not None:
        return replace(spec, mixed_size=True)
    elif len(sizes) > 1:
        left_out.append(f"{address}: {', '.join(profiles)} at once: it takes vGPUs of one size at a time")
    return spec


def _size_text(gpu: Gpu, profile: str) -> str:
    """Return what tells the sizes of profiles apart: the framebuffer, or else the number in the name."""
    size = next((t.framebuffer_mib for t in gpu.types if matches_type(t, profile)), None)
    name = parse_profile_name(profile)
    return str(size) if size is not None else name.without_board.rstrip("ABCQ") if name is not None else profile


def _named_all(gpus: dict[str, GpuSpec], snapshot: Snapshot) -> dict[str, GpuSpec]:
    """Return one entry `all` if it means the same: every GPU of this host is in it, with the same settings."""
    present = {g.address for g in snapshot.gpus if g.is_display_class and is_pci_address(g.address)}
    specs = list(gpus.values())
    same = bool(specs) and present == set(gpus) and all(spec == specs[0] for spec in specs)
    return {ALL_GPUS: specs[0]} if same else gpus


def _is_mig_profile(profile: str) -> bool:
    """Say whether a profile is one of NVIDIA's with a number of slices, such as A100-1-5C."""
    name = parse_profile_name(profile)
    return name is not None and name.mig_slices > 0


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


def import_host(host: Host, imported_config: ImportedConfig) -> QueryResult[ImportedResult]:
    """Return the text of a host.yaml, and the lines that were left out of it.

    Raises:
        NotFound, InvalidInput: the imported configuration does not fit this host.
    """
    snapshot = observe(host, ReadScope(types=True))
    converted = convert_import(imported_config, snapshot)
    header_lines = (
        f"from the files of {imported_config.source}",
        *(f"ignored: {line}" for line in converted.left_out),
    )
    text = render_host_file(converted.host_spec, {g.address: g.model for g in snapshot.gpus}, header_lines)
    data = ImportedResult(text, imported_config.source, tuple(converted.left_out))
    return QueryResult(data, (*snapshot.warnings, *(f"ignored: {line}" for line in converted.left_out)))
