# SPDX-License-Identifier: Apache-2.0
"""Builds a checked VmRequest from command-line options or a spec file, with the defaults of the host."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.regular_file import MAX_BYTES, read_regular_file

if TYPE_CHECKING:
    from vgpuctl.config.host_spec import Defaults, HostSpec
    from vgpuctl.config.vm_spec import VmSpec
    from vgpuctl.model.request import VmRequest
    from vgpuctl.ports.host import Host


def from_options(host: Host, explicit: Mapping[str, object]) -> VmRequest:
    """Return the request that create-vm's options describe."""
    from vgpuctl.config import vm_spec

    return _build_request(host, vm_spec.parse_options(**explicit))


def _build_request(host: Host, spec: VmSpec, *, complete: bool = True) -> VmRequest:
    """Fill a spec with the host's defaults, and read the user-data file that it names."""
    from vgpuctl.config import vm_spec

    user_data = None
    if spec.cloud_init is not None:
        from vgpuctl.config import user_data as cloud_init

        user_data = cloud_init.parse_user_data(read_text(spec.cloud_init, "user-data"), spec.cloud_init)
    return vm_spec.build_request(spec, defaults(host), require_complete=complete, user_data=user_data)


def many_from_options(host: Host, explicit: Mapping[str, object], count: int) -> tuple[VmRequest, tuple[str, ...]]:
    """Return the request that create-vm's options describe, and the names of the `count` VMs."""
    from vgpuctl.config import numbered_names, vm_spec

    pattern = explicit.get("name")
    names = numbered_names.expand_names(None if pattern is None else str(pattern), count)
    return _build_request(host, vm_spec.parse_options(**{**explicit, "name": None})), names


def many_from_file(
    host: Host, path: str, count: int, placement: str | None = None
) -> tuple[VmRequest, tuple[str, ...]]:
    """Return the request of a spec file whose name is a pattern, and the names of the `count` VMs."""
    from vgpuctl.config import numbered_names, vm_spec

    spec = vm_spec.parse_vm_spec(read_text(path), "standard input" if path == "-" else path, vm_spec.NUMBERED_VM_SHAPE)
    return _build_request(host, _override_placement(spec, placement), complete=False), numbered_names.expand_names(
        spec.name, count
    )


def from_file(host: Host, path: str, placement: str | None = None) -> VmRequest:
    """Return the request of a spec file; `-` is standard input. A name is enough: the VM may exist already.

    `placement`: the policy given on the command line, which overrides the file's.
    """
    from vgpuctl.config import vm_spec

    display_name = "standard input" if path == "-" else path
    return _build_request(
        host, _override_placement(vm_spec.parse_vm_spec(read_text(path), display_name), placement), complete=False
    )


def _override_placement(spec: VmSpec, placement: str | None) -> VmSpec:
    from vgpuctl.value import replace

    return spec if placement is None else replace(spec, placement=placement)


def for_vgpu(host: Host, name: str, explicit: Mapping[str, object]) -> VmRequest:
    """Return the request for a vGPU without a VM; its name is enough: it may exist already."""
    from vgpuctl.config import vm_spec

    return _build_request(host, vm_spec.parse_options(**{**explicit, "name": name}), complete=False)


def for_vm(host: Host, name: str, explicit: Mapping[str, object]) -> VmRequest:
    """Return the request for an existing VM; `name` may be a name that vgpuctl would not give, or its uuid."""
    from vgpuctl.config import vm_spec
    from vgpuctl.value import replace

    return replace(_build_request(host, vm_spec.parse_options(**explicit), complete=False), name=name)


def parse_profile_counts(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return the profiles of several `PROFILE[:N]`, each with its count.

    Raises:
        InvalidInput: one of them is invalid.
    """
    from vgpuctl.config.rules import split_profile

    try:
        return tuple(split_profile(text) for text in texts)
    except ValueError as error:
        raise InvalidInput(str(error)) from error


def defaults(host: Host) -> Defaults:
    """Return `defaults:` of the host's host.yaml; without that file there are none."""
    return host_spec(host).defaults


def host_spec(host: Host) -> HostSpec:
    """Return the host's host.yaml; a missing file counts as an empty one.

    Raises:
        InvalidInput: it cannot be read or parsed.
    """
    from vgpuctl.config.host_spec import FORMAT_VERSION, HostSpec
    from vgpuctl.observe.host_file import read_host_spec

    return read_host_spec(host) or HostSpec(FORMAT_VERSION)


def read_text(path: str, file_kind: str = "spec", max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file; messages call it `file_kind`. Only a spec may come from standard input or a pipe."""
    try:
        content = _read_bytes(path, max_bytes) if file_kind == "spec" else read_regular_file(path, max_bytes)
        if len(content) > max_bytes:
            display_name = "standard input" if path == "-" else path
            raise InvalidInput(
                f"{display_name} is larger than {max_bytes >> 10} KiB, which no {file_kind} is", path=display_name
            )
        return content.decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError as exc:
        hint = f"give the path of the {file_kind}" + (
            ", or - to read it from standard input" if file_kind == "spec" else ""
        )
        hint = _suggest_file(path) + hint
        raise NotFound(f"there is no {file_kind} file {path}", hint=hint, path=path) from exc
    except UnicodeDecodeError as exc:
        display_name = "standard input" if path == "-" else path
        hint = f"save it as UTF-8, like: iconv -f LATIN1 -t UTF-8 {'' if path == '-' else path}".rstrip()
        raise InvalidInput(f"{display_name} is not UTF-8 text: byte {exc.start} is wrong", hint=hint) from exc
    except OSError as exc:
        hint = f"ls -ld {path}" if path != "-" else "give the spec as a file: -f SPEC"
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}", hint=hint, errno=exc.errno, path=path) from exc


def _suggest_file(path: str) -> str:
    """Return the most similar name in a file's directory as a question, or nothing."""
    import difflib

    folder, name = os.path.split(path)
    try:
        matches = difflib.get_close_matches(name, os.listdir(folder or "."), 1, 0.7)
    except OSError:
        matches = []
    return f"did you mean {os.path.join(folder, matches[0])}? " if matches else ""


def _read_bytes(path: str, max_bytes: int) -> bytes:
    """Read at most one byte more than allowed: enough to see that the input is too large."""
    if path == "-":
        return sys.stdin.buffer.read(max_bytes + 1)
    with open(path, "rb") as file:
        return file.read(max_bytes + 1)
