# SPDX-License-Identifier: Apache-2.0
"""The VM spec: the desired VM, from a YAML or JSON file or from the command line's options.

Both sources end in one set of rules, so `create-vm` and `ensure-vm` cannot disagree. A spec has only the given fields,
each in its canonical spelling; `build_request` fills the rest from host.yaml and the built-in values and remembers the
source of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.device_rules import find_device_contradictions
from vgpuctl.config.host_spec import NO_DEFAULTS
from vgpuctl.config.shape import Shape
from vgpuctl.config.vm_fields import VmField
from vgpuctl.config.vm_request import FIELDS, VmRequest, guest_setup
from vgpuctl.errors import InvalidInput
from vgpuctl.model.json_yaml import SECOND_DOCUMENT_PROBLEM
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.request import CloudInit
from vgpuctl.value import Value, replace

PROFILE_HINT = "vgpuctl list-profiles shows the profiles of this host"


Given = Mapping[str, Any]
"""The fields that a spec or a command line gives, by name, each in its canonical spelling."""

VM_SHAPE = Shape(
    "VmSpec",
    "The requested VM. A field that is missing or null requests nothing.",
    tuple(field.key() for field in FIELDS.values()),
    lambda fields: (*rules.find_contradictions(fields), *find_device_contradictions(fields)),
)


EXAMPLE = "vdi-{:03}"
_PLACEHOLDER = re.compile(r"\{(?::0([1-9]))?\}", re.ASCII)


def check_pattern(value: object) -> str:
    """Check a VM's name with exactly one placeholder: `{}`, or `{:0K}` for at least K digits (1 to 9).

    Raises:
        ValueError: it is not a pattern, or its names are not valid.
    """
    text = rules.as_text(value)
    rest, placeholder_count = _PLACEHOLDER.subn("", text)
    if placeholder_count != 1 or "{" in rest or "}" in rest:
        raise ValueError(
            f"'{text}' names one VM, but several are requested: "
            f"one {{}} or {{:0K}} must stand for the number, as in {EXAMPLE}"
        )
    rules.name(fill_number(text, 1))
    return text


def expand_names(pattern: str | None, count: int) -> tuple[str, ...]:
    """Return the names of `count` VMs, numbered from 1.

    Raises:
        InvalidInput: the pattern lacks its placeholder, or one of its names is not valid.
    """
    try:
        if pattern is None:
            raise ValueError(f"missing: with --count the name is a pattern, as in {EXAMPLE}")
        checked = check_pattern(pattern)
        return tuple(rules.name(fill_number(checked, number)) for number in range(1, count + 1))
    except ValueError as error:
        raise InvalidInput(
            f"NAME: {error}",
            hint=f"vgpuctl create-vm '{EXAMPLE}' --count {count} creates {fill_number(EXAMPLE, 1)} and so on",
            problems=[{"option": "NAME", "problem": str(error)}],
        ) from error


def expand_path(path: str, count: int) -> tuple[str, ...]:
    """Return the paths of `count` VMs' files, numbered as their names; without a placeholder the path for each."""
    return tuple(fill_number(path, number) for number in range(1, count + 1))


def fill_number(text: str, number: int) -> str:
    """Return a checked pattern with a number in its placeholder."""

    def digits(match: re.Match[str]) -> str:
        return f"{number:0{match[1] or 1}}"

    return _PLACEHOLDER.sub(digits, text)


NUMBERED_VM_SHAPE = replace(
    VM_SHAPE,
    keys=tuple(replace(k, rule=check_pattern) if k.name == "name" else k for k in VM_SHAPE.keys),
)
"""The same for several VMs: the name is a pattern, `vdi-{:03}` for vdi-001, vdi-002 and so on."""


def parse_vm_spec(text: str, path: str, shape: Shape = VM_SHAPE) -> Given:
    """Read a VM spec from YAML or JSON text; `path` is the file's, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`.
    """
    from vgpuctl.config import yaml_reader

    try:
        return yaml_reader.parse_document(text, path, shape)
    except InvalidInput as error:
        if SECOND_DOCUMENT_PROBLEM in error.message:
            error.hint = "a file for each VM; of several jobs: vgpuctl import-job FILE --job NAME prints one"
        raise


def parse_options(**explicit: object) -> Given:
    """Return the fields that the command line gives, from texts, numbers or tuples of texts by name.

    None and an empty tuple mean "not given".

    Raises:
        InvalidInput: each problem as `--option: what is wrong`.
    """
    given = {name: _parse_number(name, value) for name, value in explicit.items() if value is not None and value != ()}
    try:
        return VM_SHAPE.check(given)
    except rules.ValidationError as exc:
        options = list(dict.fromkeys((_option_name(problem.path), problem.text) for problem in exc.problems))
        lines = [f"{option}: {text}" if option else text for option, text in options]
        problems = [{"option": option, "problem": text} for option, text in options]
        raise InvalidInput("\n".join(lines), problems=problems) from exc


def build_request(
    given: Given, defaults: Value = NO_DEFAULTS, *, require_complete: bool = True, seed: CloudInit | None = None
) -> VmRequest:
    """Fill the fields that are not given, from host.yaml's defaults and then from the built-in values.

    A default image is for VMs that have no system of their own: it is not used with a CD-ROM on the command line, or
    when the first disk there is an existing one. `require_complete=False` is for a VM that exists already: its name is
    enough. `seed`: the content of the files in `cloud_init` and `network_config`.

    Raises:
        InvalidInput: the VM lacks something that it needs to be created.
    """
    if require_complete:
        _refuse_missing_fields(given)
    filled: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, field in FIELDS.items():
        value, sources[name] = _fill_field(field, given, defaults)
        filled[field.attribute] = field.value(value)
    implied = rules.implied_gpus(given)
    if "gpus" not in given and implied is not None:
        filled["gpus"], sources["gpus"] = implied, sources["gpu"]
    return with_seed(VmRequest(**filled, sources=sources), seed)


def with_seed(request: VmRequest, seed: CloudInit | None) -> VmRequest:
    """Return a request with its files for cloud-init, and their paths: a file in the spec itself has one for people.

    What the request sets up in the guest is added to the files.
    """
    seed = seed or CloudInit()
    complete = replace(seed, setup=guest_setup(request, seed.setup))
    return replace(
        request,
        seed=complete if complete.sources else None,
        cloud_init=complete.user_data.path if complete.user_data is not None else None,
        network_config=complete.network_config.path if complete.network_config is not None else None,
    )


def _refuse_missing_fields(given: Given) -> None:
    missing = rules.find_missing_fields(given)
    if missing:
        option = _option_name(missing[0].path)
        text = f"{option}: {missing[0].text}" if option else missing[0].text
        hint = "vgpuctl list-gpus --all shows them" if option else f"--profile PROFILE; {PROFILE_HINT}"
        raise InvalidInput(text, hint=hint, problems=[{"option": option, "problem": missing[0].text}])


def _fill_field(field: VmField, given: Given, defaults: Value) -> tuple[object, str]:
    """Return a field's value in its canonical spelling, and its source."""
    if field.name in given:
        return given[field.name], "given"
    preset = getattr(defaults, field.name) if field.in_defaults else None
    if preset is not None and not (field.name == "image" and _brings_system(given)):
        return preset, "host.yaml"
    return field.default, "default"


def _brings_system(given: Given) -> bool:
    disks = given.get("disk")
    first = disks[0] if isinstance(disks, tuple) and disks else ""
    return "cdrom" in given or rules.is_path(str(first))


def _parse_number(name: str, value: object) -> object:
    """Turn the digits of a numeric option into a number; leave anything else for the rules to refuse."""
    numeric = name in FIELDS and FIELDS[name].is_number and isinstance(value, str)
    number = parse_integer(str(value)) if numeric and str(value).isdigit() else None
    return value if number is None else number


def _option_name(path: tuple[str | int, ...]) -> str:
    if not path:
        return ""
    name = str(path[0])
    return FIELDS[name].option if name in FIELDS else rules.format_path(path)
