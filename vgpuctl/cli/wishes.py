# SPDX-License-Identifier: Apache-2.0
"""From what was typed or what a file says to a checked VmWish, with the defaults of the host."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.regular_file import MOST_BYTES, read_regular

if TYPE_CHECKING:
    from vgpuctl.model.wish import VmWish
    from vgpuctl.model.world import World
    from vgpuctl.spec.host import Defaults, HostSpec
    from vgpuctl.spec.vm import VmSpec


def from_options(world: World, typed: Mapping[str, object]) -> VmWish:
    """Return what create-vm's options ask for."""
    from vgpuctl.spec import vm

    return _wish(world, vm.from_options(**typed))


def _wish(world: World, spec: VmSpec, *, complete: bool = True) -> VmWish:
    """Fill a spec from the host's defaults, and read the file of user-data that it names."""
    from vgpuctl.spec import vm

    user_data = None
    if spec.cloud_init is not None:
        from vgpuctl.spec import user_data as cloud_init

        user_data = cloud_init.checked(text_of(spec.cloud_init, "user-data"), spec.cloud_init)
    return vm.wish(spec, defaults(world), complete=complete, user_data=user_data)


def many_from_options(world: World, typed: Mapping[str, object], count: int) -> tuple[VmWish, tuple[str, ...]]:
    """Return what create-vm's options ask for, and the names of the `count` VMs that are to be so."""
    from vgpuctl.spec import names, vm

    pattern = typed.get("name")
    found = names.numbered(None if pattern is None else str(pattern), count)
    return _wish(world, vm.from_options(**{**typed, "name": None})), found


def many_from_file(world: World, path: str, count: int, placement: str | None = None) -> tuple[VmWish, tuple[str, ...]]:
    """Return what a spec file asks for whose name is a pattern, and the names of the `count` VMs."""
    from vgpuctl.spec import names, vm

    spec = vm.parse_vm_spec(text_of(path), "standard input" if path == "-" else path, vm.NUMBERED)
    return _wish(world, _placed(spec, placement), complete=False), names.numbered(spec.name, count)


def from_file(world: World, path: str, placement: str | None = None) -> VmWish:
    """Return what a spec file asks for; `-` is standard input. A name is enough: the VM may be there already.

    `placement`: the policy that was typed, which goes before the file's.
    """
    from vgpuctl.spec import vm

    shown = "standard input" if path == "-" else path
    return _wish(world, _placed(vm.parse_vm_spec(text_of(path), shown), placement), complete=False)


def _placed(spec: VmSpec, placement: str | None) -> VmSpec:
    from vgpuctl.value import replace

    return spec if placement is None else replace(spec, placement=placement)


def for_vgpu(world: World, name: str, typed: Mapping[str, object]) -> VmWish:
    """Return what is asked for a vGPU without a VM; its name is enough: it may be there already."""
    from vgpuctl.spec import vm

    return _wish(world, vm.from_options(**{**typed, "name": name}), complete=False)


def for_vm(world: World, name: str, typed: Mapping[str, object]) -> VmWish:
    """Return what is asked for a VM that exists; its name may be one that vgpuctl would not give, or its uuid."""
    from vgpuctl.spec import vm
    from vgpuctl.value import replace

    return replace(_wish(world, vm.from_options(**typed), complete=False), name=name)


def counted(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return the profiles of several `PROFILE[:N]`, each with its number.

    Raises:
        InvalidInput: one cannot be meant.
    """
    from vgpuctl.spec.rules import split_profile

    try:
        return tuple(split_profile(text) for text in texts)
    except ValueError as error:
        raise InvalidInput(str(error)) from error


def defaults(world: World) -> Defaults:
    """Return `defaults:` of the host's own file; a host without one has none."""
    return host_spec(world).defaults


def host_spec(world: World) -> HostSpec:
    """Return the host's own file; a host without one is as if nothing stood in it.

    Raises:
        InvalidInput: it cannot be read or understood.
    """
    from vgpuctl.engine.observe.host_file import read_host_spec
    from vgpuctl.spec.host import VERSION, HostSpec

    return read_host_spec(world) or HostSpec(VERSION)


def text_of(path: str, what: str = "spec", most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file; `what` it is, for messages. Only a spec may come from standard input, or a pipe."""
    try:
        read = _bytes(path, most_bytes) if what == "spec" else read_regular(path, most_bytes)
        if len(read) > most_bytes:
            shown = "standard input" if path == "-" else path
            raise InvalidInput(f"{shown} is larger than {most_bytes >> 10} KiB, which no {what} is", path=shown)
        return read.decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError as exc:
        hint = f"give the path of the {what}" + (", or - to read it from standard input" if what == "spec" else "")
        hint = _meant_file(path) + hint
        raise NotFound(f"there is no {what} file {path}", hint=hint, path=path) from exc
    except UnicodeDecodeError as exc:
        shown = "standard input" if path == "-" else path
        hint = f"save it as UTF-8, like: iconv -f LATIN1 -t UTF-8 {'' if path == '-' else path}".rstrip()
        raise InvalidInput(f"{shown} is not UTF-8 text: byte {exc.start} is wrong", hint=hint) from exc
    except OSError as exc:
        hint = f"ls -ld {path}" if path != "-" else "give the spec as a file: -f SPEC"
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}", hint=hint, errno=exc.errno, path=path) from exc


def _meant_file(path: str) -> str:
    """Return the nearest name in a file's directory as a question, or nothing."""
    import difflib

    folder, name = os.path.split(path)
    try:
        near = difflib.get_close_matches(name, os.listdir(folder or "."), 1, 0.7)
    except OSError:
        near = []
    return f"did you mean {os.path.join(folder, near[0])}? " if near else ""


def _bytes(path: str, most_bytes: int) -> bytes:
    """Read no more than tells that it is too much."""
    if path == "-":
        return sys.stdin.buffer.read(most_bytes + 1)
    with open(path, "rb") as file:
        return file.read(most_bytes + 1)
