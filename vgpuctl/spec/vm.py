# SPDX-License-Identifier: Apache-2.0
"""The VM spec: what a VM should be, from a YAML or JSON file or from the command line's options.

Both ways in end in one model with one rule set (`rules`), so `create-vm` and `ensure-vm` cannot disagree. A
spec keeps only what was given, each value in its one spelling; `wish` fills the rest from host.yaml and the
built-in values and remembers where each came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vgpuctl.errors import InvalidInput
from vgpuctl.model.digits import whole
from vgpuctl.model.scheduler import Policy
from vgpuctl.model.wish import ExistingDisk, NewDisk, UserData, VmWish, Where
from vgpuctl.spec import names, rules
from vgpuctl.spec.fields import DEFAULTABLE, FIELD, VM_FIELDS
from vgpuctl.spec.shape import Shape
from vgpuctl.spec.sizes import disk_mib, memory_mib
from vgpuctl.spec.values import key
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.spec.host import Defaults

PROFILE_HINT = "vgpuctl list-profiles shows what this host can make"


class VmSpec(Value):
    """A VM as asked for. A field that is left out, or null, is not asked for."""

    name: str | None = None
    profile: tuple[str, ...] | None = None
    gpu: tuple[str, ...] | None = None
    not_gpu: tuple[str, ...] | None = None
    numa_node: int | None = None
    spread_group: str | None = None
    scheduler: str | None = None
    placement: str | None = None
    mode: str | None = None
    memory: str | None = None
    vcpus: int | None = None
    image: str | None = None
    disk: tuple[str, ...] | None = None
    cdrom: str | None = None
    cloud_init: str | None = None
    network: str | None = None
    os: str | None = None
    storage_pool: str | None = None
    hotplug_slots: int | None = None
    pci_window: str | None = None
    vgpu_params: Mapping[str, str] | None = None
    template: str | None = None
    reserve: str | None = None
    force_console: bool | None = None

    def given(self) -> dict[str, object]:
        """Return the fields that were given, by name."""
        return {name: value for name in _ORDER if (value := getattr(self, name)) is not None}

    def profiles(self) -> tuple[tuple[str, int], ...]:
        """Return (profile, count), one entry a profile, in the order of their first mention."""
        counts: dict[str, int] = {}
        for entry in self.profile or ():
            wanted, count = rules.split_profile(entry)
            counts[wanted] = counts.get(wanted, 0) + count
        return tuple(counts.items())


_ORDER = ("name", *(entry.name for entry in VM_FIELDS))
_FLAGS = tuple(entry.name for entry in VM_FIELDS if entry.flag)
VM = Shape("VmSpec", str(VmSpec.__doc__), tuple(key(field) for field in _ORDER), rules.contradictions)


NUMBERED = replace(VM, keys=tuple(replace(k, rule=names.pattern) if k.name == "name" else k for k in VM.keys))
"""The same for several VMs: the name is a pattern (`vgpuctl.spec.names`)."""


def parse_vm_spec(text: str, name: str, shape: Shape = VM) -> VmSpec:
    """Read a VM spec from YAML or JSON text; `name` is the file's, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`.
    """
    from vgpuctl.spec.read import parse  # a YAML reader, which options do not need

    given: dict[str, Any] = parse(text, name, shape)
    return VmSpec(**given)


def from_options(**typed: object) -> VmSpec:
    """Build a spec from the command line: field names with texts, numbers or tuples of texts.

    None, an empty tuple and a flag that is off mean "not given".

    Raises:
        InvalidInput: each problem as `--option: what is wrong`.
    """
    given = {
        name: _number(name, value)
        for name, value in typed.items()
        if value is not None and value != () and not (value is False and name in _FLAGS)
    }
    try:
        checked: dict[str, Any] = VM.check(given)
    except rules.Refused as exc:
        options = list(dict.fromkeys((_option(problem.path), problem.text) for problem in exc.problems))
        lines = [f"{option}: {text}" if option else text for option, text in options]
        problems = [{"option": option, "problem": text} for option, text in options]
        raise InvalidInput("\n".join(lines), problems=problems) from exc
    return VmSpec(**checked)


def wish(
    spec: VmSpec, defaults: Defaults | None = None, *, complete: bool = True, user_data: UserData | None = None
) -> VmWish:
    """Fill what the spec leaves out, from host.yaml's defaults and then from the built-in values.

    A default image is for VMs that bring no system themselves: it is left out when a CD-ROM was typed, or
    when the first disk typed is an existing one. `complete=False` is for a VM that exists already: its name
    is enough. `user_data` is what the file of `cloud_init` holds.

    Raises:
        InvalidInput: the VM lacks something it cannot be made without.
    """
    given = spec.given()
    missing = rules.lacks(given) if complete else ()
    if missing:
        option = _option(missing[0].path)
        text = f"{option}: {missing[0].text}" if option else missing[0].text
        hint = "vgpuctl list-gpus --all shows them" if option else f"--profile PROFILE; {PROFILE_HINT}"
        raise InvalidInput(text, hint=hint, problems=[{"option": option, "problem": missing[0].text}])
    filled: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name in _ORDER:
        filled[name], sources[name] = _fill(name, given, defaults)
    texts = filled["disk"] or ()
    return VmWish(
        name=spec.name,
        profiles=spec.profiles(),
        where=where(spec),
        mode=filled["mode"],
        memory_mib=memory_mib(filled["memory"]),
        vcpus=filled["vcpus"],
        image=filled["image"],
        disks=tuple(ExistingDisk(t) if rules.is_path(t) else NewDisk(disk_mib(t)) for t in texts),
        cdrom=spec.cdrom,
        network=filled["network"],
        os=filled["os"],
        storage_pool=filled["storage_pool"],
        hotplug_slots=filled["hotplug_slots"],
        vgpu_params=tuple((spec.vgpu_params or {}).items()),
        template=filled["template"],
        reserve=filled["reserve"],
        force_console=filled["force_console"],
        pci_window=filled["pci_window"],
        sources=sources,
        cloud_init=user_data,
    )


def where(spec: VmSpec) -> Where:
    """Return what a spec says of where its vGPUs go."""
    return Where(
        gpus=spec.gpu or (),
        not_gpus=spec.not_gpu or (),
        numa_node=spec.numa_node,
        spread_group=spec.spread_group,
        scheduler=Policy(spec.scheduler) if spec.scheduler is not None else None,
        policy=spec.placement,
    )


def _fill(name: str, given: Mapping[str, object], defaults: Defaults | None) -> tuple[object, str]:
    if name in given:
        return given[name], "typed"
    preset = getattr(defaults, name) if defaults is not None and name in DEFAULTABLE else None
    if preset is not None and not (name == "image" and _brings_system(given)):
        return preset, "host.yaml"
    return (FIELD[name].built_in if name in FIELD else None), "built in"


def _brings_system(given: Mapping[str, object]) -> bool:
    disks = given.get("disk")
    first = disks[0] if isinstance(disks, tuple) and disks else ""
    return "cdrom" in given or rules.is_path(str(first))


def _number(name: str, value: object) -> object:
    """Turn the digits of a numeric option into a number; anything else is left for the rules to refuse."""
    numeric = name in ("vcpus", "hotplug_slots", "numa_node") and isinstance(value, str)
    number = whole(str(value)) if numeric and str(value).isdigit() else None
    return value if number is None else number


def _option(path: tuple[str | int, ...]) -> str:
    if not path:
        return ""
    name = str(path[0])
    if name == "name":
        return "NAME"
    return FIELD[name].option if name in FIELD else rules.shown_path(path)
