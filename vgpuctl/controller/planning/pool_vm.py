# SPDX-License-Identifier: Apache-2.0
"""The VMs of a pool's desktops: the key `vm:` of a pool's spec, and the VM spec of one desktop.

`vm:` has the fields of a VM spec with their own rules, without those that the pool decides (`_POOL_FIELDS`)
and without those that would make all desktops share one thing, or would bring secrets into the database: files for
cloud-init, a disk by path, a card's MAC address, the address of a GPU. Paths in it are files of the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.arguments import NONE, WINDOWS_11
from vgpuctl.config.device_rules import parse_nic
from vgpuctl.config.domain_join import is_computer_name
from vgpuctl.config.rules import Problem, ValidationError
from vgpuctl.config.shape import Key, Shape
from vgpuctl.config.vm_request import FIELDS
from vgpuctl.config.vm_spec import VM_SHAPE, fill_number
from vgpuctl.controller.model import Desktop, Image, PoolSpec
from vgpuctl.errors import InvalidInput
from vgpuctl.model.autostart import AUTOSTART_ENABLED, AUTOSTART_LAST_STATE
from vgpuctl.model.names import normalize_pci
from vgpuctl.value import replace

MAX_NAME, MAX_WINDOWS_NAME = 63, 15
"""NetBIOS names of Windows computers have at most 15 characters (Microsoft, KB 909264)."""
_POOL_FIELDS = {"name": "names", "image": "image", "profile": "profile", "off_after_setup": "prepared"}
"""Fields of a VM that the pool decides, and its keys for them."""


def _no_file(value: object) -> object:
    raise ValueError(
        "a pool takes no files for cloud-init: set up the guest in the image, or with license, k8s_join, domain_join, "
        "guest_driver and guest_helper (the value is not shown, because it may contain passwords)"
    )


def _vm_key(key: Key) -> Key:
    if key.name in ("cloud_init", "network_config"):
        return Key(key.name, _no_file, "not in a pool: set up the guest in the image", {"not": {}})
    return key


def _find_shared(fields: Mapping[str, object]) -> tuple[Problem, ...]:
    """Check `vm:` for what only one desktop could have; works on unchecked values too."""
    problems: list[Problem] = []
    if fields.get("autostart") == AUTOSTART_ENABLED:
        problems.append(Problem(("autostart",), "a desktop that should be off would run after a boot: use last-state"))
    for name in ("disk", "networks", "gpu", "not_gpu"):
        value = fields.get(name)
        for text in value if isinstance(value, list | tuple) else (value,):
            if name == "disk" and isinstance(text, str) and rules.is_path(text):
                problems.append(Problem((name,), "a path is one disk, and desktops share none: specify sizes"))
            if name == "networks" and isinstance(text, str) and "mac=" in text:
                problems.append(Problem((name,), "omit mac: each desktop has its own MAC address"))
            if name in ("gpu", "not_gpu") and isinstance(text, str) and normalize_pci(text) is not None:
                problems.append(Problem((name,), f"{text} is an address of one host: specify a model, like A16"))
    return tuple(problems)


POOL_VM_SHAPE = Shape(
    "PoolVm",
    "Further fields of each desktop's VM, as in a VM spec; paths are files of the hosts.",
    tuple(_vm_key(key) for key in VM_SHAPE.keys if key.name not in _POOL_FIELDS),
    _find_shared,
)


def pool_vm(value: object) -> dict[str, object]:
    """Check `vm:`; lists stay lists, so that the database's JSON gives back the same."""
    given = value if isinstance(value, Mapping) else {}
    problems = [
        Problem((name,), f"specify the pool's {_POOL_FIELDS[name]} instead", at_key=True)
        for name in _POOL_FIELDS
        if name in given
    ]
    checked: dict[str, object] = {}
    try:
        checked = POOL_VM_SHAPE.check(
            {name: given[name] for name in given if name not in _POOL_FIELDS} if given else value
        )
    except ValidationError as error:
        problems += error.problems
    if problems:
        raise ValidationError(tuple(problems))
    return {name: list(entry) if isinstance(entry, tuple) else entry for name, entry in checked.items()}


def long_name_problem(pattern: str, maximum: int, os: str) -> str | None:
    """Return why a pattern makes names that are too long for guests with this system; None: it does not."""
    longest = fill_number(pattern, maximum)
    if os == WINDOWS_11 and len(longest) > MAX_WINDOWS_NAME:
        return (
            f"'{longest}' has {len(longest)} characters, and the name of a Windows computer at most {MAX_WINDOWS_NAME}"
        )
    return (
        f"'{longest}' has {len(longest)} characters; at most {MAX_NAME} are allowed"
        if len(longest) > MAX_NAME
        else None
    )


def refuse_image(spec: PoolSpec, image: Image) -> None:
    """Refuse an image that a pool's desktops cannot have.

    Raises:
        InvalidInput: it is one.
    """
    problem = image_problem(spec, image)
    if problem is not None:
        raise InvalidInput(f"image: {problem}", hint="vgpuctl controller list-images", image=image.name)


def image_problem(spec: PoolSpec, image: Image) -> str | None:
    """Return why a pool cannot have desktops of an image; None: it can. Only the image says its system."""
    if image.retired:
        return f"the image {image.name} is retired"
    system = spec.vm.get("os", image.os)
    if system != image.os and WINDOWS_11 in (system, image.os):
        return f"vm: has os: {system}, and the image {image.name} has {image.os}"
    return long_name_problem(spec.names, spec.maximum, str(system)) or _domain_problem(spec, image, str(system))


def _domain_problem(spec: PoolSpec, image: Image, system: str) -> str | None:
    """Return why guests cannot join the domain of the pool's spec; None: they can, or there is none."""
    if spec.vm.get("domain_join", NONE) == NONE:
        return None
    if system != WINDOWS_11:
        return f"vm: has domain_join, which is for Windows, and the image {image.name} has {image.os}"
    longest = fill_number(spec.names, spec.maximum)
    return None if is_computer_name(longest) else f"'{longest}' is no name of a Windows computer in a domain"


def desktop_vm(desktop: Desktop, spec: PoolSpec, image: Image) -> dict[str, Any]:
    """Return the VM spec of a desktop, for `ensure_vm`: of its pool, with its own name, MAC address, profile, image."""
    fields: dict[str, Any] = {
        "os": image.os,
        "autostart": AUTOSTART_LAST_STATE,
        **spec.vm,
        "name": desktop.name,
        "image": image.path,
    }
    if spec.prepared:
        fields["off_after_setup"] = True
    if desktop.profile is not None and spec.profiles:
        fields["profile"] = desktop.profile
    texts = fields.get("networks", FIELDS["networks"].default)
    if tuple(texts) != (NONE,):
        first, *others = texts
        fields["networks"] = [replace(parse_nic(first), mac=desktop.mac).text, *others]
    return fields
