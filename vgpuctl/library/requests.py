# SPDX-License-Identifier: Apache-2.0
"""Builds a checked VmRequest from fields or from a spec file, with the defaults of the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.config import vm_spec
from vgpuctl.config.host_spec import FORMAT_VERSION, HostSpec
from vgpuctl.config.rules import split_profile
from vgpuctl.config.shape import Shape
from vgpuctl.config.user_data import parse_network_config, parse_user_data
from vgpuctl.config.vm_spec import NUMBERED_VM_SHAPE, VM_SHAPE, VmSpec
from vgpuctl.errors import InvalidInput
from vgpuctl.library.text_file import display_name, read_text
from vgpuctl.model.request import CloudInit
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.request import VmRequest
    from vgpuctl.ports.host import Host


def build(host: Host, spec: VmSpec, *, complete: bool = True) -> VmRequest:
    """Fill a spec with the host's defaults, and read the files for cloud-init that it names.

    `complete`: it describes a new VM; otherwise the VM may exist already, and its name is enough.

    Raises:
        InvalidInput, NotFound: the spec, the user-data or host.yaml is wrong, or missing.
    """
    return vm_spec.build_request(
        spec, read_spec_of_host(host).defaults, require_complete=complete, seed=_read_cloud_init(spec)
    )


def _read_cloud_init(spec: VmSpec) -> CloudInit | None:
    user_data = network_config = None
    if spec.cloud_init is not None:
        user_data = parse_user_data(read_text(spec.cloud_init, "user-data"), spec.cloud_init)
    if spec.network_config is not None:
        network_config = parse_network_config(read_text(spec.network_config, "network-config"), spec.network_config)
    return CloudInit(user_data, network_config) if user_data or network_config else None


def from_fields(host: Host, name: str | None, fields: Mapping[str, object], *, complete: bool = True) -> VmRequest:
    """Return the request that fields describe."""
    return build(host, vm_spec.parse_options(**{**fields, "name": name}), complete=complete)


def from_file(
    host: Host, file: str, fields: Mapping[str, object], note: Callable[[VmSpec], None] | None = None
) -> VmRequest:
    """Return the request of a spec file; `-` is standard input, and `fields` replace those of the file.

    `note` gets the spec that was read, before it is checked against this host.
    """
    return build(host, _read_spec(file, fields, VM_SHAPE, note), complete=False)


def for_several(
    host: Host,
    pattern: str | None,
    file: str | None,
    count: int,
    fields: Mapping[str, object],
    note: Callable[[VmSpec], None] | None = None,
) -> tuple[VmRequest, tuple[str, ...]]:
    """Return the request that several VMs share, and their names; the pattern may be the file's name.

    `note`: as in `from_file`.
    """
    if file is None:
        names = vm_spec.expand_names(pattern, count)
        return build(host, vm_spec.parse_options(**fields)), names
    spec = _read_spec(file, fields, NUMBERED_VM_SHAPE, note)
    return build(host, spec, complete=False), vm_spec.expand_names(pattern or spec.name, count)


def for_vm(host: Host, name: str, fields: Mapping[str, object]) -> VmRequest:
    """Return the request for an existing VM; `name` may be a name that vgpuctl would not give, or its uuid."""
    return replace(build(host, vm_spec.parse_options(**fields), complete=False), name=name)


def _read_spec(file: str, fields: Mapping[str, object], shape: Shape, note: Callable[[VmSpec], None] | None) -> VmSpec:
    spec = vm_spec.parse_vm_spec(read_text(file), display_name(file), shape)
    given = vm_spec.parse_options(**fields).given_fields()
    spec = replace(spec, **given) if given else spec
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
