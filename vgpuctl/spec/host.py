# SPDX-License-Identifier: Apache-2.0
"""`/etc/vgpuctl/host.yaml`: what this host should look like, as far as it is read today.

`version: 1` must be there and unknown keys are refused from the first release on, so that a later key is
never silently ignored by an older vgpuctl.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vgpuctl.errors import InvalidInput
from vgpuctl.model.partition import MigSpec
from vgpuctl.model.scheduler import SchedulerSpec
from vgpuctl.model.wish import PlacementSpec
from vgpuctl.spec import rules
from vgpuctl.spec.fields import DEFAULTABLE, GPU_MODES
from vgpuctl.spec.mig import MIG_SCHEMA, mig_spec, mig_value, together
from vgpuctl.spec.placement import PLACEMENT, placement_spec
from vgpuctl.spec.scheduler import SCHEDULER, scheduler_spec, scheduler_value
from vgpuctl.spec.shape import Key, Shape, at_least_one, by_name
from vgpuctl.spec.values import key
from vgpuctl.value import NOTHING, Value

VERSION = 1


class Defaults(Value):
    """What fills a field that a VM spec or a command line leaves out."""

    image: str | None = None
    memory: str | None = None
    vcpus: int | None = None
    network: str | None = None
    os: str | None = None
    storage_pool: str | None = None


class GpuSpec(Value):
    """What a GPU is set up for. `vfs` None: as many as the driver makes by itself; `cordoned`: no new vGPUs on it.

    `scheduler` None: NVIDIA's driver decides. `profiles`: only these are placed on it; `reserved_for`: only for VMs
    whose names fit one of these patterns. `mig` None: its MIG mode and instances stay as they are; `mixed_size`:
    whether vGPUs of several sizes may be on it at once.
    """

    mode: str | None = None
    vfs: int | None = None
    cordoned: bool | None = None
    scheduler: SchedulerSpec | None = None
    profiles: tuple[str, ...] | None = None
    reserved_for: tuple[str, ...] | None = None
    mig: MigSpec | None = None
    mixed_size: bool | None = None


class VgpuSpec(Value):
    """A vGPU without a VM, made again after each boot: its profile, and where it is (an mdev's UUID or a VF)."""

    profile: str
    gpu: str
    carrier: str
    vgpu_params: Mapping[str, str] = NOTHING


class BootSpec(Value):
    """How restoring after a boot goes about it. `deadline_seconds`: how long drivers and VFs are waited for.

    `hold_libvirt_seconds`: how long libvirt's start waits for them; VMs of GPUs that come later are started afterwards.
    """

    deadline_seconds: int = 300
    hold_libvirt_seconds: int = 30


class HostSpec(Value):
    """The host file /etc/vgpuctl/host.yaml. `gpus` by PCI address, model or "all", `vgpus` by name.

    `placement`: on which GPU new vGPUs go, of those with room.
    """

    version: int
    defaults: Defaults = Defaults()
    gpus: Mapping[str, GpuSpec] = NOTHING
    vgpus: Mapping[str, VgpuSpec] = NOTHING
    boot: BootSpec = BootSpec()
    placement: PlacementSpec = PlacementSpec()


def parse_host_spec(text: str, name: str) -> HostSpec:
    """Read host.yaml; `name` is its path, for messages.

    Raises:
        InvalidInput: each problem as `file:line:column: path: what is wrong`; also of a text that is cut short to
            nothing, as a broken pipe or a full disk leaves it.
    """
    if all(not line or line.startswith("#") for line in (line.strip() for line in text.splitlines())):
        raise InvalidInput(f"{name} says nothing: a host.yaml has at least 'version: {VERSION}'", path=name)
    from vgpuctl.spec.read import parse  # a YAML reader, which types and defaults do not need

    given: dict[str, Any] = parse(text, name, HOST)
    return HostSpec(**given)


def said_of(entry: Value | None, keys: Iterable[str]) -> dict[str, object]:
    """Return what an entry of host.yaml says for some keys, as it is written there; None where it says nothing."""
    return {key: as_written(getattr(entry, key, None)) for key in keys}


def as_written(value: object) -> object:
    """Return a value as host.yaml writes it: a tuple as a list, a scheduler as a mapping, what is empty as None."""
    if isinstance(value, SchedulerSpec):
        return scheduler_value(value)
    if isinstance(value, MigSpec):
        return mig_value(value)
    if isinstance(value, tuple):
        return list(value) or None
    if isinstance(value, Mapping):
        return dict(value) or None
    return value if value or value is False else None


def one_line(value: object) -> str:
    """Return a value as host.yaml writes it, in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {one_line(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(one_line, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _version(value: object) -> object:
    if value != VERSION or isinstance(value, bool | float):
        raise ValueError(f"this vgpuctl reads version {VERSION} of host.yaml, written 'version: {VERSION}'")
    return value


def _defaults(value: object) -> Defaults:
    given: dict[str, Any] = DEFAULTS.check(value)
    return Defaults(**given)


def _gpus(value: object) -> dict[str, GpuSpec]:
    given: Any = by_name(rules.gpu_key, GPU)(value)
    return {address: GpuSpec(**entry) for address, entry in given.items()}


def _vgpus(value: object) -> dict[str, VgpuSpec]:
    given: Any = by_name(rules.name, VGPU)(value)
    first: dict[object, str] = {}
    twice: list[rules.Problem] = []
    for name, entry in given.items():
        other = first.setdefault(entry["carrier"], name)
        if other != name:
            twice.append(rules.Problem((name, "carrier"), f"{entry['carrier']} is the carrier of vGPU {other} too"))
    if twice:
        raise rules.Refused(tuple(twice))
    return {name: VgpuSpec(**entry) for name, entry in given.items()}


def _boot(value: object) -> BootSpec:
    given: dict[str, Any] = BOOT.check(value)
    return BootSpec(**given)


DEFAULTS = Shape(
    "Defaults",
    "What fills a field that a VM spec or a command line leaves out.",
    tuple(key(field) for field in DEFAULTABLE),
)
_TEXTS = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
    ]
}
GPU = Shape(
    "Gpu",
    "What a GPU is set up for; vgpuctl apply, set-mode, set-mig, set-mixed-size, set-scheduler and cordon write it.",
    (
        Key("mode", rules.gpu_mode, "what the GPU is set up for", {"enum": list(GPU_MODES), "type": "string"}),
        Key("vfs", rules.vfs, "how many virtual functions are on", {"minimum": 0, "maximum": 256, "type": "integer"}),
        Key("cordoned", rules.truth, "true: nothing new is placed on it", {"type": "boolean"}),
        Key("scheduler", scheduler_spec, "how NVIDIA's driver divides the GPU's time", shape=SCHEDULER),
        Key("profiles", at_least_one(rules.allowed_profile), "only these vGPU profiles are placed on it", _TEXTS),
        Key("reserved_for", at_least_one(rules.name_pattern), "only for VMs with such names, like vdi-*", _TEXTS),
        Key("mig", mig_spec, "off, the GPU instances that there are, or the vGPUs that there is room for", MIG_SCHEMA),
        Key("mixed_size", rules.truth, "true: vGPUs of several sizes may be on it at once", {"type": "boolean"}),
    ),
    together,
)
VGPU = Shape(
    "Vgpu",
    "A vGPU without a VM, which restore-host makes again after each boot; create-vgpu and delete-vgpu write it.",
    (
        Key("profile", rules.profile, "the vGPU profile", {"minLength": 1, "type": "string"}, required=True),
        Key("gpu", rules.pci_address, "the GPU's PCI address", {"type": "string"}, required=True),
        Key("carrier", rules.carrier, "the mdev's UUID, or the VF's PCI address", {"type": "string"}, required=True),
        key("vgpu_params"),
    ),
)
BOOT = Shape(
    "Boot",
    "How restoring after a boot goes about it.",
    (
        Key(
            "deadline_seconds",
            rules.deadline_seconds,
            "how long drivers and VFs are waited for; 300 when it is left out",
            {"minimum": 1, "maximum": 3600, "type": "integer"},
        ),
        Key(
            "hold_libvirt_seconds",
            rules.hold_seconds,
            "how long libvirt's start waits for GPUs that are not ready; 30 when it is left out",
            {"minimum": 0, "maximum": 3600, "type": "integer"},
        ),
    ),
)
HOST = Shape(
    "HostSpec",
    "The host file /etc/vgpuctl/host.yaml.",
    (
        Key("version", _version, "the version of this file's format", {"const": VERSION}, required=True),
        Key("defaults", _defaults, "fill what is not typed for a new VM", shape=DEFAULTS),
        Key("gpus", _gpus, "what each GPU is set up for, by PCI address (in quotes), by model, or all", entries=GPU),
        Key("vgpus", _vgpus, "vGPUs without a VM, by name", entries=VGPU),
        Key("boot", _boot, "restoring after a boot", shape=BOOT),
        Key("placement", placement_spec, "on which GPU new vGPUs go", shape=PLACEMENT),
    ),
)
