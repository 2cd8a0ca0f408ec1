# SPDX-License-Identifier: Apache-2.0
"""The host.yaml that is asked for: the host's own or another file, with the changes that were typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.engine.observe.host_file import PATH, read_host_spec, read_text
from vgpuctl.errors import HostCannot, InvalidInput, NotFound
from vgpuctl.model.step import Step
from vgpuctl.spec.assign import entry_changes_of, parse_assignment, with_changes
from vgpuctl.spec.edit import edit_gpu
from vgpuctl.spec.host import VERSION, HostSpec, parse_host_spec
from vgpuctl.steps.host_file import PutHostFile, SetGpuKeys
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World


class Asked(Value):
    """What is asked for, what host.yaml says now, the steps that have it say the former, and where it came from.

    `file`: the text that was read for it, before changes that were typed. `replaces`: whether another file becomes
    host.yaml; then `broken` is why the present one cannot be understood, None where it can.
    """

    spec: HostSpec
    now: HostSpec
    record: tuple[Step, ...]
    source: str
    file: File
    replaces: bool = False
    broken: str | None = None


class File(Value):
    """A text that is to become host.yaml, and its name for messages."""

    text: str
    name: str


def ask(world: World, file: File | None, sets: Sequence[str]) -> Asked:
    """Return what is asked for. `file` None: the host's own; `sets`: texts like `gpus[ADDRESS].KEY=VALUE`.

    Raises:
        InvalidInput: a file or a text cannot be understood; each problem with its place.
    """
    assignments = tuple(parse_assignment(text) for text in sets)
    base = parse_host_spec(file.text, file.name) if file is not None else read_host_spec(world) or HostSpec(VERSION)
    changes = entry_changes_of(base, assignments)
    spec = with_changes(base, changes)
    was = read_text(world)
    if file is None:
        record: tuple[Step, ...] = tuple(SetGpuKeys(one.gpu, one.changes, one.before) for one in changes)
        return Asked(spec, base, record, "--set" if changes else PATH, File(was or "", PATH))
    text, now, broken = file.text, HostSpec(VERSION), None
    try:
        now = read_host_spec(world) or now
    except InvalidInput as error:
        broken = error.message
    for one in changes:
        text = edit_gpu(text, one.gpu, one.changes, file.name)
    record = () if text == was else (PutHostFile(text, was, file.name),)
    return Asked(spec, now, record, file.name, File(text, file.name), True, broken)


def version_before(world: World, number: int) -> File:
    """Return a version before of host.yaml, 1 being the newest.

    Raises:
        NotFound: that one is not kept.
        InvalidInput: it cannot be read or understood.
    """
    path = f"{PATH}.{number}"
    if world.host_file is None:
        raise HostCannot(f"{PATH} of {world.name} is out of reach", check="host-file", path=PATH)
    try:
        text = world.host_file.kept(number)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}", hint=f"ls -l {path}") from error
    if text is None:
        raise NotFound(
            f"there is no {path}: no such version of host.yaml is kept",
            hint="ls -l /etc/vgpuctl shows those that are; 1 is the newest",
            path=path,
        )
    try:
        parse_host_spec(text, path)
    except InvalidInput as error:
        error.hint = f"look at it, or go further back: vgpuctl apply --undo {number + 1}"
        raise
    return File(text, path)
