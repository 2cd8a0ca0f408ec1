# SPDX-License-Identifier: Apache-2.0
"""`--set gpus[ADDRESS].KEY=VALUE`: changes of host.yaml as they are typed, judged by the rules of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vgpuctl.errors import InvalidInput
from vgpuctl.spec import rules
from vgpuctl.spec.host import GPU, GpuSpec, HostSpec, as_written
from vgpuctl.spec.read import load
from vgpuctl.spec.rules import Problem, Refused
from vgpuctl.value import NOTHING, Value, replace

_FORM = re.compile(r"gpus\[(?P<gpu>[^\]]+)\]\.(?P<path>[A-Za-z_]+(?:\.[A-Za-z_]+)*)=(?P<value>.*)", re.DOTALL)
HINT = "write it like --set 'gpus[0000:3b:00.0].scheduler.policy=fixed_share', or with a model or all in the brackets"


class Assignment(Value):
    """One change: `gpu` as host.yaml names it, the path of a key in its entry, and the value; None takes it out."""

    gpu: str
    path: tuple[str, ...]
    value: object
    text: str


class EntryChange(Value):
    """What an entry of `gpus:` is to say: the keys that change, what they were, and the entry as a whole."""

    gpu: str
    changes: Mapping[str, object]
    before: Mapping[str, object]
    entry: GpuSpec | None


def parse_assignment(text: str) -> Assignment:
    """Read one change; the value is YAML, as in the file.

    Raises:
        InvalidInput: naming the text.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(f"--set {text}: this names no key of a GPU", hint=HINT)
    try:
        gpu = rules.gpu_key(found["gpu"].strip("\"' "))
    except ValueError as error:
        raise InvalidInput(f"--set {text}: {error}", hint=HINT) from error
    value = load(found["value"], f"--set {text}").value
    return Assignment(gpu, tuple(found["path"].split(".")), value, text)


def entry_changes_of(host: HostSpec, assignments: Sequence[Assignment]) -> tuple[EntryChange, ...]:
    """Return what the changes make of each entry that they touch, in the order in which they were typed.

    Raises:
        InvalidInput: each problem with the text of the change that brought it.
    """
    found: list[EntryChange] = []
    problems: list[str] = []
    for gpu in dict.fromkeys(one.gpu for one in assignments):
        mine = [one for one in assignments if one.gpu == gpu]
        try:
            found.append(_changed(host.gpus.get(gpu), gpu, mine))
        except Refused as error:
            problems += [f"--set {_culprit(mine, problem).text}: {_told(problem)}" for problem in error.problems]
    if problems:
        raise InvalidInput("\n".join(problems), hint=HINT)
    return tuple(one for one in found if one.changes)


def with_changes(host: HostSpec, changes: Sequence[EntryChange]) -> HostSpec:
    """Return what host.yaml says with these changes."""
    gpus = dict(host.gpus)
    for one in changes:
        if one.entry is None:
            gpus.pop(one.gpu, None)
        else:
            gpus[one.gpu] = one.entry
    return replace(host, gpus=gpus or NOTHING)


def _changed(entry: GpuSpec | None, gpu: str, assignments: Sequence[Assignment]) -> EntryChange:
    keys = GPU.names
    before = {key: value for key in keys if (value := as_written(getattr(entry, key, None))) is not None}
    after: dict[str, Any] = dict(before)
    for one in assignments:
        _assign(after, one)
    checked: dict[str, Any] = GPU.check(after)
    said = GpuSpec(**checked)
    touched = dict.fromkeys(one.path[0] for one in assignments)
    new = {key: as_written(getattr(said, key)) for key in touched}
    changes = {key: value for key, value in new.items() if value != before.get(key)}
    return EntryChange(gpu, changes, {key: before.get(key) for key in changes}, said if checked else None)


def _assign(entry: dict[str, Any], one: Assignment) -> None:
    """Set one value; a key within a mapping leaves the mapping's other keys as they are."""
    first, *rest = one.path
    if rest:
        known = entry.get(first)
        inner = dict(known) if isinstance(known, Mapping) else {}
        _assign(inner, replace(one, path=tuple(rest)))
        entry[first] = inner or None
    else:
        entry[first] = one.value


def _culprit(assignments: Sequence[Assignment], problem: Problem) -> Assignment:
    """Return the change to name for a problem: that of the longest common path, of several the last."""
    path = tuple(str(part) for part in problem.path)

    def common(one: Assignment) -> int:
        return next((n for n, pair in enumerate(zip(path, one.path, strict=False)) if pair[0] != pair[1]), len(path))

    return max(reversed(assignments), key=common)


def _told(problem: Problem) -> str:
    where = rules.shown_path(problem.path)
    return f"{where}: {problem.text}" if where else problem.text
