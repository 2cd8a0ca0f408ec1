# SPDX-License-Identifier: Apache-2.0
"""`--set gpus[ADDRESS].KEY=VALUE`, `--set agent.KEY=VALUE`: changes of host.yaml, checked by the rules of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.host_spec import GPU_SHAPE, GpuSpec, HostSpec, dump_value
from vgpuctl.config.rules import Problem, ValidationError
from vgpuctl.config.yaml_reader import load_document
from vgpuctl.errors import InvalidInput
from vgpuctl.value import EMPTY_MAPPING, Value, replace

_ASSIGNMENT = re.compile(r"gpus\[(?P<gpu>[^\]]+)\]\.(?P<path>[A-Za-z_]+(?:\.[A-Za-z_]+)*)=(?P<value>.*)", re.DOTALL)
_AGENT_ASSIGNMENT = re.compile(r"agent(?P<path>(?:\.[a-z_]+|\[[^\]]+\])+)=(?P<value>.*)", re.DOTALL)
_AGENT_KEY = re.compile(r"\.([a-z_]+)|\[([^\]]+)\]")
HINT = (
    "write it like --set 'gpus[0000:3b:00.0].scheduler.policy=fixed_share', with a model or all in the brackets, or "
    "like --set 'agent.accounts[ada]=operator'"
)


class Assignment(Value):
    """One change: `gpu` as host.yaml names it, the path of a key in its entry, and the value; None removes it."""

    gpu: str
    path: tuple[str, ...]
    value: object
    text: str


class AgentAssignment(Value):
    """One change in the section `agent:`: the path of a key, and the value; None removes it."""

    path: tuple[str, ...]
    value: object


class EntryChange(Value):
    """A change of one entry of `gpus:`: the keys that change, their old values, and the new entry as a whole."""

    gpu: str
    changes: Mapping[str, object]
    before: Mapping[str, object]
    entry: GpuSpec | None


def parse_agent_assignment(text: str) -> AgentAssignment | None:
    """Read one change of the section `agent:`; None if the text names another one.

    Raises:
        InvalidInput: the value is no YAML.
    """
    match = _AGENT_ASSIGNMENT.fullmatch(text.strip())
    if match is None:
        return None
    keys = tuple(key or name for key, name in _AGENT_KEY.findall(match["path"]))
    return AgentAssignment(keys, load_document(match["value"], f"--set {text}").value)


def parse_assignment(text: str) -> Assignment:
    """Read one change of a GPU; the value is YAML, as in the file.

    Raises:
        InvalidInput: with the text.
    """
    match = _ASSIGNMENT.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"--set {text}: this does not name a key of a GPU or of agent", hint=HINT)
    try:
        gpu = rules.gpu_key(match["gpu"].strip("\"' "))
    except ValueError as error:
        raise InvalidInput(f"--set {text}: {error}", hint=HINT) from error
    value = load_document(match["value"], f"--set {text}").value
    return Assignment(gpu, tuple(match["path"].split(".")), value, text)


def resolve_assignments(host: HostSpec, assignments: Sequence[Assignment]) -> tuple[EntryChange, ...]:
    """Return the change of each entry that the assignments touch, in command-line order.

    Raises:
        InvalidInput: each problem, with the text of the assignment that causes it.
    """
    changes: list[EntryChange] = []
    problems: list[str] = []
    for gpu in dict.fromkeys(item.gpu for item in assignments):
        gpu_assignments = [item for item in assignments if item.gpu == gpu]
        try:
            changes.append(_change_entry(host.gpus.get(gpu), gpu, gpu_assignments))
        except ValidationError as error:
            problems += [
                f"--set {_find_cause(gpu_assignments, problem).text}: {_format_problem(problem)}"
                for problem in error.problems
            ]
    if problems:
        raise InvalidInput("\n".join(problems), hint=HINT)
    return tuple(item for item in changes if item.changes)


def apply_changes(host: HostSpec, changes: Sequence[EntryChange]) -> HostSpec:
    """Return host.yaml's content with these changes."""
    gpus = dict(host.gpus)
    for change in changes:
        if change.entry is None:
            gpus.pop(change.gpu, None)
        else:
            gpus[change.gpu] = change.entry
    return replace(host, gpus=gpus or EMPTY_MAPPING)


def _change_entry(entry: GpuSpec | None, gpu: str, assignments: Sequence[Assignment]) -> EntryChange:
    keys = GPU_SHAPE.names
    before = {key: value for key in keys if (value := dump_value(getattr(entry, key, None))) is not None}
    after: dict[str, Any] = dict(before)
    for assignment in assignments:
        _assign(after, assignment)
    checked: dict[str, Any] = GPU_SHAPE.check(after)
    new_entry = GpuSpec(**checked)
    assigned_keys = dict.fromkeys(assignment.path[0] for assignment in assignments)
    new = {key: dump_value(getattr(new_entry, key)) for key in assigned_keys}
    changes = {key: value for key, value in new.items() if value != before.get(key)}
    return EntryChange(gpu, changes, {key: before.get(key) for key in changes}, new_entry if checked else None)


def _assign(entry: dict[str, Any], assignment: Assignment) -> None:
    """Set one value; a key within a mapping leaves the mapping's other keys as they are."""
    first, *rest = assignment.path
    if rest:
        current = entry.get(first)
        inner = dict(current) if isinstance(current, Mapping) else {}
        _assign(inner, replace(assignment, path=tuple(rest)))
        entry[first] = inner or None
    else:
        entry[first] = assignment.value


def _find_cause(assignments: Sequence[Assignment], problem: Problem) -> Assignment:
    """Return the assignment to blame for a problem: the one with the longest common path, of several the last."""
    path = tuple(str(part) for part in problem.path)

    def shared_length(assignment: Assignment) -> int:
        return next(
            (n for n, pair in enumerate(zip(path, assignment.path, strict=False)) if pair[0] != pair[1]), len(path)
        )

    return max(reversed(assignments), key=shared_length)


def _format_problem(problem: Problem) -> str:
    where = rules.format_path(problem.path)
    return f"{where}: {problem.text}" if where else problem.text
