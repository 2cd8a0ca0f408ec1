# SPDX-License-Identifier: Apache-2.0
"""Builds a checked VmRequest from fields or from a spec file, with the defaults of the host."""

from __future__ import annotations

import hashlib
import os.path
from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.config import vm_spec
from vgpuctl.config.cloud_init_files import parse_network_config, parse_user_data, static_addresses
from vgpuctl.config.host_spec import FORMAT_VERSION, HostSpec
from vgpuctl.config.labels import parse_changes
from vgpuctl.config.rules import is_path, split_profile
from vgpuctl.config.shape import Shape
from vgpuctl.config.vm_request import (
    CHANGE_FIELDS,
    CONSTRAINT_FIELDS,
    FIELDS,
    LABEL_FIELDS,
    OTHER_COMMANDS,
    SECRET_FIELDS,
)
from vgpuctl.config.vm_spec import NUMBERED_VM_SHAPE, VM_SHAPE, Given, with_seed
from vgpuctl.errors import InvalidInput
from vgpuctl.library.fields import PlacementFields, VgpuFields, VmChangeFields, WholeGpuFields
from vgpuctl.library.text_file import display_name, read_given_text
from vgpuctl.model.request import CloudInit, CloudInitFile, GuestSetup
from vgpuctl.observe.guest_secrets import read_secrets
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.config.vm_request import VmRequest
    from vgpuctl.ports.host import Host


def build(host: Host, spec: Given, *, complete: bool = True) -> VmRequest:
    """Fill a spec with the host's defaults, and read the files for cloud-init that it names.

    `complete`: it describes a new VM; otherwise the VM may exist already, and its name is enough.

    Raises:
        InvalidInput, NotFound: the spec, the user-data or host.yaml is wrong, or missing.
    """
    return vm_spec.build_request(
        spec, read_spec_of_host(host).defaults, require_complete=complete, seed=_read_cloud_init(host, spec)
    )


def _read_cloud_init(host: Host, spec: Given) -> CloudInit | None:
    user_data = network_config = None
    if "cloud_init" in spec:
        user_data = parse_user_data(read_given_text(host, spec["cloud_init"], "user-data"), spec["cloud_init"])
    if "network_config" in spec:
        network_config = _read_network_config(host, spec["network_config"])
    secrets = read_secrets(host, {field: spec.get(field) for field in SECRET_FIELDS})
    seed = CloudInit(user_data, network_config, GuestSetup(secrets.license, secrets.k8s_join, secrets.domain_join))
    return seed if seed != CloudInit() else None


def _read_network_config(host: Host, config: str) -> CloudInitFile:
    """Return a network configuration: a file's, or one in the spec, which its checksum names."""
    if is_path(config):
        return parse_network_config(read_given_text(host, config, "network-config"), config)
    return parse_network_config(config, f"network_config {_inline_name(config)}")


def _inline_name(text: str) -> str:
    return f"in the spec (sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]})"


def loggable_fields(spec: Given) -> dict[str, object]:
    """Return the given fields without the contents of files that a spec has in itself: they may have passwords."""
    config = spec.get("network_config")
    shown = {**spec, "network_config": _inline_name(config)} if config and not is_path(config) else spec
    return {name: shown[name] for name in FIELDS if name in shown}


def from_fields(host: Host, name: str | None, fields: Mapping[str, object], *, complete: bool = True) -> VmRequest:
    """Return the request that fields describe."""
    return build(host, vm_spec.parse_options(**{**fields, "name": name}), complete=complete)


def from_file(
    host: Host, file: str, fields: Mapping[str, object], note: Callable[[Given], None] | None = None
) -> VmRequest:
    """Return the request of a spec file; `-` is standard input, and `fields` replace those of the file.

    `note` gets the spec that was read, before it is checked against this host.
    """
    return build(host, _read_spec(host, file, fields, VM_SHAPE, note), complete=False)


def for_several(
    host: Host,
    pattern: str | None,
    file: str | None,
    count: int,
    fields: Mapping[str, object],
    note: Callable[[Given], None] | None = None,
) -> tuple[VmRequest, tuple[str, ...], dict[str, CloudInit]]:
    """Return the request that several VMs share, their names, and each VM's own files for cloud-init.

    The pattern may be the file's name. A path of a file for cloud-init may have a placeholder, as the name: then the
    shared request has that path, and the first VM's file. `note`: as in `from_file`.

    Raises:
        InvalidInput, NotFound: as `build`; or one file gives all of them the same static address.
    """
    if file is None:
        names = vm_spec.expand_names(pattern, count)
        spec = vm_spec.parse_options(**fields)
    else:
        spec = _read_spec(host, file, fields, NUMBERED_VM_SHAPE, note)
        names = vm_spec.expand_names(pattern or spec.get("name"), count)
    specs = _spec_of_each(spec, count)
    specs_by_paths = {_cloud_init_files(own): own for own in specs}
    read = {paths: _read_cloud_init(host, own) for paths, own in specs_by_paths.items()}
    seeds = {
        name: seed for name, own in zip(names, specs, strict=True) if (seed := read[_cloud_init_files(own)]) is not None
    }
    _refuse_shared_address(specs, seeds)
    request = build(host, specs[0], complete=file is None)
    return with_seed(request, _with_paths(request.seed, spec)), names, seeds


def _cloud_init_files(spec: Given) -> tuple[str | None, str | None]:
    return spec.get("cloud_init"), spec.get("network_config")


def _spec_of_each(spec: Given, count: int) -> list[Given]:
    """Return the spec of each VM, whose paths have its number."""
    specs = [spec] * count
    for field in ("cloud_init", "network_config"):
        path = spec.get(field)
        if path is not None and is_path(path):
            paths = vm_spec.expand_path(path, count)
            specs = [{**own, field: own_path} for own, own_path in zip(specs, paths, strict=True)]
    return specs


def _with_paths(seed: CloudInit | None, spec: Given) -> CloudInit | None:
    """Return the files with the paths of the spec, which stand for those of all VMs."""
    if seed is None:
        return None
    (user_data, network), (path, config) = (seed.user_data, seed.network_config), _cloud_init_files(spec)
    if user_data is not None and path is not None:
        user_data = replace(user_data, path=path)
    if network is not None and config is not None and is_path(config):
        network = replace(network, path=config)
    return replace(seed, user_data=user_data, network_config=network)


def _refuse_shared_address(specs: Sequence[Given], seeds: Mapping[str, CloudInit]) -> None:
    """Refuse a static address that several VMs would get, from one file or from several.

    Raises:
        InvalidInput: naming the address, the files and the pattern that gives each VM a file of its own.
    """
    owners: dict[str, tuple[str, CloudInitFile]] = {}
    files = {seed.network_config.path: seed.network_config for seed in seeds.values() if seed.network_config}
    addresses = {path: static_addresses(file) for path, file in files.items()}
    for name, seed in seeds.items():
        file = seed.network_config
        if file is None:
            continue
        for address in addresses[file.path]:
            first, other = owners.setdefault(address.partition("/")[0].lower(), (name, file))
            if first == name:
                continue
            if other.path == file.path:
                stem, suffix = os.path.splitext(file.path if is_path(file.path) else "/root/net.yaml")
                stem = stem.rstrip("-_0123456789") or stem
                raise InvalidInput(
                    f"{file.path} gives every VM the static address {address}, and {len(specs)} VMs are requested",
                    hint=f"write one file for each VM and give their pattern: --network-config "
                    f"{quote(f'{stem}-{{}}{suffix}')} means {stem}-1{suffix} to {stem}-{len(specs)}{suffix}",
                    path=file.path,
                    address=address,
                )
            raise InvalidInput(
                f"{other.path} and {file.path} give {first} and {name} the same static address {address}",
                hint="change it in one of the files",
                path=file.path,
                address=address,
            )


def for_vm(host: Host, name: str, fields: Mapping[str, object]) -> VmRequest:
    """Return the request for an existing VM; `name` may be a name that vgpuctl would not give, or its uuid."""
    return replace(build(host, vm_spec.parse_options(**fields), complete=False), name=name)


def for_change(host: Host, name: str, fields: Mapping[str, object]) -> VmRequest:
    """Return the request that changes an existing VM: labels are added to those that it has, or removed.

    An empty text sets the default of what only the VM's record has, such as its owner.

    Raises:
        InvalidInput: a field is invalid, nothing is given, or only where vGPUs go, and none of them moves.
    """
    labels = parse_changes(fields.get("labels") or ())
    removed = {name for name in LABEL_FIELDS if fields.get(name) == ""} - {"labels"}
    spec = vm_spec.parse_options(**{k: value for k, value in fields.items() if k not in {"labels", *removed}})
    given = {*spec, *removed, *(["labels"] if labels else [])}
    constraints = sorted(given & {*CONSTRAINT_FIELDS} - {"gpu", "not_gpu"})
    if not given:
        options = ", ".join(FIELDS[field].option for field in CHANGE_FIELDS)
        raise InvalidInput("nothing to change is given", hint=f"the options are {options}")
    if constraints and not given & {"profile", "gpu", "not_gpu"}:
        options = ", ".join(FIELDS[field].option for field in constraints)
        raise InvalidInput(
            f"{options}: says where new vGPUs go, and none is new", hint="add --profile, --gpu or --not-gpu"
        )
    request = replace(build(host, spec, complete=False), name=name, label_changes=labels)
    sources = {**request.sources, **dict.fromkeys(given & {*LABEL_FIELDS}, "given")}
    return replace(
        request,
        sources=sources,
        **{FIELDS[name].attribute: FIELDS[name].value(FIELDS[name].default) for name in removed},
    )


def _read_spec(
    host: Host, file: str, fields: Mapping[str, object], shape: Shape, note: Callable[[Given], None] | None
) -> Given:
    text = read_given_text(host, file)
    spec = {**vm_spec.parse_vm_spec(text, display_name(file), shape), **vm_spec.parse_options(**fields)}
    if note is not None:
        note(spec)
    return spec


def count_profiles(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return the profiles of several `PROFILE[:N]`, each with its count.

    Raises:
        InvalidInput: one of them is invalid.
    """
    try:
        return tuple(split_profile(text) for text in texts)
    except ValueError as error:
        raise InvalidInput(str(error)) from error


def read_spec_of_host(host: Host) -> HostSpec:
    """Return the host's host.yaml; a missing file counts as an empty one.

    Raises:
        InvalidInput: it cannot be read or parsed.
    """
    return read_host_spec(host) or HostSpec(FORMAT_VERSION)


def refuse_other_fields(
    fields: Mapping[str, object], kind: type[PlacementFields | VgpuFields | VmChangeFields | WholeGpuFields]
) -> None:
    """Refuse fields of a VM spec that a call does not use, and a missing or empty `profile` where it needs one.

    Raises:
        InvalidInput: naming the fields.
    """
    others = sorted(fields.keys() - kind.__annotations__.keys())
    if others:
        hints = [OTHER_COMMANDS[name] for name in others if name in OTHER_COMMANDS] if kind is VmChangeFields else []
        raise InvalidInput(
            f"{', '.join(others)}: this takes {', '.join(sorted(kind.__annotations__))} only",
            hint="; ".join(hints) or None,
        )
    if kind is WholeGpuFields and not (fields.get("gpu") or fields.get("gpus")):
        raise InvalidInput(
            "no GPU is given: gpu (--gpu) names it, gpus (--gpus) says how many", hint="vgpuctl list-gpus shows them"
        )
    if kind is PlacementFields and not fields.get("profile"):
        raise InvalidInput("profile: not set", hint="vgpuctl list-profiles shows the profiles of this host")
