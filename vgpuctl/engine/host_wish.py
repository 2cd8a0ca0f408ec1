# SPDX-License-Identifier: Apache-2.0
"""The host.yaml that is asked for: the host's own or another file, with the changes that were typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.engine.observe.host_file import PATH, read_text
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

    `file`: the text that was read for it, before changes that were typed.
    """

    spec: HostSpec
    now: HostSpec
    record: tuple[Step, ...]
    source: str
    file: File


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
    was = read_text(world)
    now = _spec(was, PATH)
    base = now if file is None else _spec(file.text, file.name)
    changes = entry_changes_of(base, assignments)
    spec = with_changes(base, changes)
    if file is None:
        record: tuple[Step, ...] = tuple(SetGpuKeys(one.gpu, one.changes, one.before) for one in changes)
        return Asked(spec, now, record, "--set" if changes else PATH, File(was or "", PATH))
    text = file.text
    for one in changes:
        text = edit_gpu(text, one.gpu, one.changes, file.name)
    return Asked(spec, now, () if text == was else (PutHostFile(text, was, file.name),), file.name, file)


def _spec(text: str | None, name: str) -> HostSpec:
    return HostSpec(VERSION) if text is None else parse_host_spec(text, name)
