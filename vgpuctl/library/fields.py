# SPDX-License-Identifier: Apache-2.0
"""The fields of a VM spec as arguments of calls; docs/json/vm-spec.schema.json says what each means.

None and an empty sequence mean that a field is not given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Required, TypedDict

from vgpuctl.config.vm_fields import OTHER_COMMANDS
from vgpuctl.errors import InvalidInput

Texts = str | Sequence[str]
"""One value or several of a field that can be repeated."""


class _GpuFields(TypedDict, total=False):
    gpu: Texts
    not_gpu: Texts
    numa_node: int | str | None
    scheduler: str | None
    placement: str | None


class PlacementFields(_GpuFields, total=False):
    """vGPUs of these profiles, and where they may go."""

    profile: Required[Texts]


class WholeGpuFields(TypedDict, total=False):
    """Whole GPUs for a VM that exists: which, and how many."""

    gpu: Texts
    gpus: int | str | None
    not_gpu: Texts
    numa_node: int | str | None
    force_console: bool | None


class VmChangeFields(_GpuFields, total=False):
    """What can change in a VM that exists; what is not given stays.

    `labels` are set, or removed by None or `key-`; the VM's other labels stay. An empty `owner` removes it.
    """

    profile: Texts
    memory: str | None
    vcpus: int | str | None
    hugepages: str | None
    cpu_pin: str | None
    networks: str | Mapping[str, object] | Sequence[str | Mapping[str, object]]
    display: bool | None
    reserve: str | None
    labels: Texts | Mapping[str, str | None]
    owner: str | None


class VgpuFields(_GpuFields, total=False):
    """What a vGPU without a VM can have."""

    profile: Texts
    vgpu_params: Texts | Mapping[str, str]


class VmFields(VgpuFields, total=False):
    """What a new VM can have: every field of a VM spec but its name."""

    spread_group: str | None
    gpus: int | str | None
    mode: str | None
    memory: str | None
    vcpus: int | str | None
    hugepages: str | None
    cpu_pin: str | None
    image: str | None
    disk: Texts
    cdrom: str | None
    cloud_init: str | None
    network_config: str | Mapping[str, object] | None
    networks: str | Mapping[str, object] | Sequence[str | Mapping[str, object]]
    display: bool | None
    os: str | None
    storage_pool: str | None
    hotplug_slots: int | str | None
    pci_window: str | None
    template: str | None
    reserve: str | None
    labels: Texts | Mapping[str, str]
    owner: str | None
    force_console: bool | None


def refuse_other_fields(
    fields: Mapping[str, object], kind: type[PlacementFields | VgpuFields | VmChangeFields | WholeGpuFields]
) -> None:
    """Refuse fields of a VM spec that a call does not use, and a missing or empty `profile` where it needs one.

    Raises:
        InvalidInput: naming the fields.
    """
    others = sorted(fields.keys() - kind.__annotations__.keys())
    if others:
        hints = [OTHER_COMMANDS[name] for name in others if name in OTHER_COMMANDS] if kind is VmChangeFields else []
        raise InvalidInput(
            f"{', '.join(others)}: this takes {', '.join(sorted(kind.__annotations__))} only",
            hint="; ".join(hints) or None,
        )
    if kind is WholeGpuFields and not (fields.get("gpu") or fields.get("gpus")):
        raise InvalidInput(
            "no GPU is given: gpu (--gpu) names it, gpus (--gpus) says how many", hint="vgpuctl list-gpus shows them"
        )
    if kind is PlacementFields and not fields.get("profile"):
        raise InvalidInput("profile: not set", hint="vgpuctl list-profiles shows the profiles of this host")
