# SPDX-License-Identifier: Apache-2.0
"""The VM spec: the desired VM, from a YAML or JSON file or from the command line's options.

Both sources end in one model with one set of rules (`rules`), so `create-vm` and `ensure-vm` cannot disagree. A spec
keeps only the given fields, each value in its canonical spelling; `build_request` fills the rest from host.yaml and the
built-in values and remembers the source of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vgpuctl.config import rules
from vgpuctl.config.device_rules import find_device_contradictions, parse_nic
from vgpuctl.config.shape import Shape
from vgpuctl.config.size_text import parse_disk_size, parse_memory_size
from vgpuctl.config.vm_fields import DEFAULTABLE_FIELDS, FIELD_BY_NAME, LIST_DEFAULT_FIELDS, NONE, VM_FIELDS
from vgpuctl.config.vm_keys import make_key
from vgpuctl.errors import InvalidInput
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.request import CloudInit, ExistingDisk, GpuConstraints, NewDisk, VmRequest
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.config.host_spec import Defaults


PROFILE_HINT = "vgpuctl list-profiles shows the profiles of this host"


class VmSpec(Value):
    """The requested VM. A field that is missing or null requests nothing."""

    name: str | None = None
    profile: tuple[str, ...] | None = None
    gpu: tuple[str, ...] | None = None
    gpus: int | None = None
    not_gpu: tuple[str, ...] | None = None
    numa_node: int | None = None
    spread_group: str | None = None
    scheduler: str | None = None
    placement: str | None = None
    mode: str | None = None
    memory: str | None = None
    vcpus: int | None = None
    hugepages: str | None = None
    cpu_pin: str | None = None
    image: str | None = None
    disk: tuple[str, ...] | None = None
    cdrom: str | None = None
    cloud_init: str | None = None
    network_config: str | None = None
    networks: tuple[str, ...] | None = None
    display: bool | None = None
    os: str | None = None
    storage_pool: str | None = None
    hotplug_slots: int | None = None
    pci_window: str | None = None
    vgpu_params: Mapping[str, str] | None = None
    template: str | None = None
    reserve: str | None = None
    labels: Mapping[str, str] | None = None
    owner: str | None = None
    force_console: bool | None = None

    def given_fields(self) -> dict[str, object]:
        """Return the given fields, by name."""
        return {name: value for name in _FIELD_ORDER if (value := getattr(self, name)) is not None}

    def count_profiles(self) -> tuple[tuple[str, int], ...]:
        """Return (profile, count), one entry for each profile, in the order of first mention."""
        counts: dict[str, int] = {}
        for entry in self.profile or ():
            profile_name, count = rules.split_profile(entry)
            counts[profile_name] = counts.get(profile_name, 0) + count
        return tuple(counts.items())


_FIELD_ORDER = ("name", *(entry.name for entry in VM_FIELDS))
VM_SHAPE = Shape(
    "VmSpec",
    str(VmSpec.__doc__),
    tuple(make_key(field) for field in _FIELD_ORDER),
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
    rules.name(_fill_number(text, 1))
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
        return tuple(rules.name(_fill_number(checked, number)) for number in range(1, count + 1))
    except ValueError as error:
        raise InvalidInput(
            f"NAME: {error}",
            hint=f"vgpuctl create-vm '{EXAMPLE}' --count {count} creates {_fill_number(EXAMPLE, 1)} and so on",
            problems=[{"option": "NAME", "problem": str(error)}],
        ) from error


def expand_path(path: str, count: int) -> tuple[str, ...]:
    """Return the paths of `count` VMs' files, numbered as their names; without a placeholder the path for each."""
    return tuple(_fill_number(path, number) for number in range(1, count + 1))


def _fill_number(text: str, number: int) -> str:
    def digits(match: re.Match[str]) -> str:
        return f"{number:0{match[1] or 1}}"

    return _PLACEHOLDER.sub(digits, text)


NUMBERED_VM_SHAPE = replace(
    VM_SHAPE,
    keys=tuple(replace(k, rule=check_pattern) if k.name == "name" else k for k in VM_SHAPE.keys),
)
"""The same for several VMs: the name is a pattern, `vdi-{:03}` for vdi-001, vdi-002 and so on."""


def parse_vm_spec(text: str, path: str, shape: Shape = VM_SHAPE) -> VmSpec:
    """Read a VM spec from YAML or JSON text; `path` is the file's, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`.
    """
    from vgpuctl.config import yaml_reader

    given: dict[str, Any] = yaml_reader.parse_document(text, path, shape)
    return VmSpec(**given)


def parse_options(**explicit: object) -> VmSpec:
    """Build a spec from the command line: field names with texts, numbers or tuples of texts.

    None and an empty tuple mean "not given".

    Raises:
        InvalidInput: each problem as `--option: what is wrong`.
    """
    given = {name: _parse_number(name, value) for name, value in explicit.items() if value is not None and value != ()}
    try:
        checked: dict[str, Any] = VM_SHAPE.check(given)
    except rules.ValidationError as exc:
        options = list(dict.fromkeys((_option_name(problem.path), problem.text) for problem in exc.problems))
        lines = [f"{option}: {text}" if option else text for option, text in options]
        problems = [{"option": option, "problem": text} for option, text in options]
        raise InvalidInput("\n".join(lines), problems=problems) from exc
    return VmSpec(**checked)


def build_request(
    spec: VmSpec, defaults: Defaults | None = None, *, require_complete: bool = True, seed: CloudInit | None = None
) -> VmRequest:
    """Fill the fields that the spec omits, from host.yaml's defaults and then from the built-in values.

    A default image is for VMs that have no system of their own: it is not used with a CD-ROM on the command line, or
    when the first disk there is an existing one. `require_complete=False` is for a VM that exists already: its name is
    enough. `seed`: the content of the files in `cloud_init` and `network_config`.

    Raises:
        InvalidInput: the VM lacks something that it needs to be created.
    """
    given = spec.given_fields()
    if require_complete:
        _refuse_missing_fields(given)
    filled: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name in _FIELD_ORDER:
        filled[name], sources[name] = _fill_field(name, given, defaults)
    if spec.gpus is None and rules.implied_gpus(given) is not None:
        sources["gpus"] = sources["gpu"]
    texts = filled["disk"] or ()
    return VmRequest(
        name=spec.name,
        profiles=spec.count_profiles(),
        constraints=gpu_constraints(spec),
        mode=filled["mode"],
        gpus=spec.gpus or rules.implied_gpus(given) or 1,
        memory_mib=parse_memory_size(filled["memory"]),
        vcpus=filled["vcpus"],
        image=filled["image"],
        disks=tuple(ExistingDisk(t) if rules.is_path(t) else NewDisk(parse_disk_size(t)) for t in texts),
        cdrom=spec.cdrom,
        nics=tuple(parse_nic(text) for text in filled["networks"] if text != NONE),
        os=filled["os"],
        storage_pool=filled["storage_pool"],
        hotplug_slots=filled["hotplug_slots"],
        vgpu_params=tuple((spec.vgpu_params or {}).items()),
        template=filled["template"],
        reserve=filled["reserve"],
        force_console=filled["force_console"],
        pci_window=filled["pci_window"],
        sources=sources,
        cloud_init=seed,
        display=filled["display"],
        hugepages=filled["hugepages"],
        cpu_pin=filled["cpu_pin"],
        labels=filled["labels"] or {},
        owner=filled["owner"],
    )


def _refuse_missing_fields(given: Mapping[str, object]) -> None:
    missing = rules.find_missing_fields(given)
    if missing:
        option = _option_name(missing[0].path)
        text = f"{option}: {missing[0].text}" if option else missing[0].text
        hint = "vgpuctl list-gpus --all shows them" if option else f"--profile PROFILE; {PROFILE_HINT}"
        raise InvalidInput(text, hint=hint, problems=[{"option": option, "problem": missing[0].text}])


def gpu_constraints(spec: VmSpec) -> GpuConstraints:
    """Return a spec's constraints on where its vGPUs go."""
    return GpuConstraints(
        gpus=spec.gpu or (),
        not_gpus=spec.not_gpu or (),
        numa_node=spec.numa_node,
        spread_group=spec.spread_group,
        scheduler=SchedulerPolicy(spec.scheduler) if spec.scheduler is not None else None,
        policy=spec.placement,
    )


def _fill_field(name: str, given: Mapping[str, object], defaults: Defaults | None) -> tuple[object, str]:
    if name in given:
        return given[name], "command-line"
    preset = getattr(defaults, name) if defaults is not None and name in DEFAULTABLE_FIELDS else None
    if preset is not None and not (name == "image" and _brings_system(given)):
        return preset, "host.yaml"
    built_in = FIELD_BY_NAME[name].default if name in FIELD_BY_NAME else None
    return ((built_in,) if name in LIST_DEFAULT_FIELDS else built_in), "default"


def _brings_system(given: Mapping[str, object]) -> bool:
    disks = given.get("disk")
    first = disks[0] if isinstance(disks, tuple) and disks else ""
    return "cdrom" in given or rules.is_path(str(first))


def _parse_number(name: str, value: object) -> object:
    """Turn the digits of a numeric option into a number; leave anything else for the rules to refuse."""
    numeric = name in ("vcpus", "hotplug_slots", "numa_node", "gpus") and isinstance(value, str)
    number = parse_integer(str(value)) if numeric and str(value).isdigit() else None
    return value if number is None else number


def _option_name(path: tuple[str | int, ...]) -> str:
    if not path:
        return ""
    name = str(path[0])
    if name == "name":
        return "NAME"
    return FIELD_BY_NAME[name].option if name in FIELD_BY_NAME else rules.format_path(path)
