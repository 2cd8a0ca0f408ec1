# SPDX-License-Identifier: Apache-2.0
"""Say how existing VMs differ from a request, in the terms of a spec, and which command changes each field."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

from vgpuctl.config.name_patterns import name_range
from vgpuctl.config.vm_request import CHANGE_FIELDS, FIELDS, LABEL_FIELDS
from vgpuctl.model.numbers import format_mib
from vgpuctl.operations.plans.vm_diff import PLACEMENT_FIELDS, FieldValues


def _describe_value(value: object) -> str:
    """Return the value of a field in one line, as a spec has it; `none` for one that is not set."""
    if isinstance(value, Mapping):
        value = [f"{key}={each}" for key, each in value.items()]
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def describe_differences(before: FieldValues, after: FieldValues) -> str:
    """Return every field that differs: `memory: 4 GiB -> 8 GiB, profile: A16-2Q -> A16-4Q`."""
    return ", ".join(describe_change(field, before, after) for field in sorted(before))


def describe_change(field: str, before: FieldValues, after: FieldValues) -> str:
    """Return how one field differs: `memory: 4 GiB -> 8 GiB`."""
    return f"{field}: {_describe_field(field, before[field])} -> {_describe_field(field, after[field])}"


def fixed_field_hint(vms: Sequence[str], fields: Collection[str], before: FieldValues, after: FieldValues) -> str:
    """Return what to do about fields that ensure-vm never changes: the command that does, or another VM."""
    names = _command_words(vms)
    hints, rest = [], set(fields)
    if "image" in rest and before["image"] and after["image"]:
        rest.discard("image")
        image = shlex.quote(str(after["image"]))
        hints.append(
            f"vgpuctl refresh-vm {names} --image {image} gives {_it(vms)} a new disk; the current disk is lost"
        )
    if "disk" in rest:
        rest.discard("disk")
        hints.append(f"vgpuctl resize-disk {names} SIZE grows a disk; otherwise write the current sizes into the spec")
    if "gpus" in rest and "mode" not in rest:
        rest.discard("gpus")
        hints.append(_gpus_hint(names, before["gpus"], after["gpus"]))
    restrictions = sorted(rest & set(PLACEMENT_FIELDS))
    if restrictions:
        hints.append(f"only a new VM is placed by {', '.join(restrictions)}: omit that for one that exists")
    fixed = sorted(rest - set(restrictions))
    if fixed:
        hints.append(
            f"{', '.join(fixed)} cannot be changed in place: use the current value"
            f" (vgpuctl show-vm {names} -o yaml), or another name for a new VM"
        )
    return "; ".join(hints)


def _gpus_hint(names: str, before: object, after: object) -> str:
    """Return the command that gives VMs the requested number of whole GPUs."""
    if not isinstance(before, int) or not isinstance(after, int) or before < after:
        missing = after - before if isinstance(before, int) and isinstance(after, int) else "N"
        return f"vgpuctl attach-gpu {names} --gpus {missing} adds the missing GPUs while the VM is off"
    return f"vgpuctl detach-gpu {names} --gpu ADDRESS removes one; vgpuctl show-vm {names} shows their addresses"


def set_vm_command(vms: Sequence[str], fields: Collection[str], before: FieldValues, after: FieldValues) -> str:
    """Return the command that gives VMs the requested values of fields that set-vm changes."""
    words = [word for field in CHANGE_FIELDS if field in fields for word in _option_words(field, before, after)]
    return f"vgpuctl set-vm {_command_words(vms)} {shlex.join(words)}"


def _option_words(field: str, before: FieldValues, after: FieldValues) -> list[str]:
    option, value = FIELDS[field].option, after[field]
    if field == "display":
        return [option if value else f"--no-{option[2:]}"]
    values = value if isinstance(value, list) else [value or ""]
    if isinstance(value, Mapping) and field == "profile":
        values = _counted(value)
    elif isinstance(value, Mapping):
        old = before[field]
        values = [f"{key}={each}" for key, each in value.items()]
        values += [f"{key}-" for key in old if key not in value] if isinstance(old, Mapping) else []
    elif field == "memory" and isinstance(value, int):
        values = [format_mib(value).replace(" ", "")]
    return [word for each in values for word in (option, str(each))]


def difference_hint(vms: Mapping[str, tuple[FieldValues, FieldValues]], updatable: Collection[str]) -> str:
    """Return which commands change several VMs, each with its (before, after). `updatable`: fields to change while off.

    The value of a field is the first VM's that differs in it: all are compared with one request.
    """
    before: FieldValues = {}
    after: FieldValues = {}
    for values, requested in vms.values():
        before, after = {**values, **before}, {**requested, **after}
    fields = before.keys()
    labels = fields & set(LABEL_FIELDS)
    while_off = (fields - labels) & set(updatable)
    fixed = fields - labels - while_off

    def having(some: Collection[str]) -> list[str]:
        return [name for name, (values, _) in vms.items() if any(field in values for field in some)]

    hints = [fixed_field_hint(having(fixed), fixed, before, after)] if fixed else []
    if while_off:
        command = set_vm_command(having(while_off), while_off, before, after)
        hints.append(f"vgpuctl stop-vm {_command_words(having(while_off))}, then: {command}")
    hints += [set_vm_command(having(labels), labels, before, after)] if labels else []
    return "; ".join(hints)


def _command_words(vms: Sequence[str]) -> str:
    """Return names as words of a command, numbered ones as one range: `'vdi-{001..100}'`."""
    numbered = name_range(vms) if len(vms) > 1 else None
    return shlex.quote(numbered) if numbered is not None else shlex.join(vms)


def _it(vms: Sequence[str]) -> str:
    return "it" if len(vms) == 1 else "each"


def _describe_field(field: str, value: object) -> str:
    if field == "profile" and isinstance(value, Mapping):
        return _describe_value(_counted(value))
    return format_mib(value) if field == "memory" and isinstance(value, int) else _describe_value(value)


def _counted(profiles: Mapping[str, int]) -> list[str]:
    """Return profiles as a spec has them: A16-2Q, or A16-2Q:2 for two vGPUs of it."""
    return [profile if count == 1 else f"{profile}:{count}" for profile, count in profiles.items()]
