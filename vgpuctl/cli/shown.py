# SPDX-License-Identifier: Apache-2.0
"""How a command's module says what people see of its result: pages, the columns of lists, and texts of values.

`?` means unknown, `-` means none. It imports little, because a command's options are completed without its result.
`vgpuctl.cli.listings` makes the page of a result, `vgpuctl.cli.output` renders it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from vgpuctl.model.numbers import format_bytes, format_mib
from vgpuctl.model.results import ABSENT
from vgpuctl.value import EMPTY_MAPPING, Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.gpus import (
        ExplainResult,
        ProfileResult,
        ReasonResult,
        RoomResult,
        TypeResult,
        VgpuResult,
    )
    from vgpuctl.model.results.moves import BarrierResult
    from vgpuctl.model.results.vms import DiskResult, KeptDiskResult, NetworkResult

MAX_NAMES = 8
NUMERIC_HEADERS = frozenset({"MEMORY", "MAX/GPU", "FREE"})


class Table(Value):
    """Rows under headers. The sets name headers.

    `right_aligned`: columns of numbers. `free_text`: columns that may be cut. `states`: columns that get a colour.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right_aligned: frozenset[str] = frozenset()
    free_text: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()


class Pairs(Value):
    """Names and values, one pair per line."""

    items: tuple[tuple[str, str], ...]


Block = Table | Pairs | str
"""What a page consists of."""


class Page(Value):
    """Blocks for stdout and lines for stderr."""

    blocks: Sequence[Block] = ()
    stderr_lines: Sequence[str] = ()


Cell = str | int | float | bool | tuple[str, ...] | None
"""The value of a column in a row: what filters compare, rows are sorted by, and csv prints. None: unknown, or none."""

Level = Literal["default", "wide", "named"]
"""Where a column is shown: in every table, in that of `-o wide`, or only where --columns names it (and in csv)."""


class Column(Value):
    """One column. `text`: how tables show a cell, where `str` does not do. `unit`: that of the number, for csv.

    `optional`: the default table omits it if no row has a value.
    """

    key: str
    header: str
    cell: Callable[[Any], Cell]
    text: Callable[[Any], str] | None = None
    level: Level = "default"
    numeric: bool = False
    free_text: bool = False
    is_state: bool = False
    unit: str = ""
    optional: bool = False

    @property
    def csv_key(self) -> str:
        """The column's name in csv: with the unit, `memory_mib`."""
        return f"{self.key}_{self.unit}" if self.unit else self.key


class Listing(Value):
    """A list. `identity`: what a command calls a row: `-o name` prints it.

    `families`: by prefix, columns that exist for any key: `{"label": lambda vm, key: vm.labels.get(key)}` makes
    `label.site` a column. `within`: the field of the result that has the rows; None: it is the rows.
    """

    noun: str
    columns: tuple[Column, ...]
    identity: Callable[[Any], str]
    families: Mapping[str, Callable[[Any, str], Cell]] = EMPTY_MAPPING
    within: str | None = None


def rows_of(listing: Listing | None, data: Any) -> tuple[Any, ...] | None:
    """Return the rows of a list's result; None if it has none, as the result of several VMs or hosts."""
    rows = data if listing is None or listing.within is None else getattr(data, listing.within, None)
    return rows if isinstance(rows, tuple) else None


def with_rows(listing: Listing, data: Any, rows: tuple[Any, ...]) -> Any:
    """Return a list's result with other rows."""
    return rows if listing.within is None else replace(data, **{listing.within: rows})


def dry_run(result: Outcome[object]) -> Page:
    """Return the steps of a dry run, and where each value came from."""
    steps = result.steps
    width = len(str(len(steps)))
    blocks: list[Block] = ["would do:" if steps else "nothing to do"]
    blocks += [f"  {number:>{width}}  {step}" for number, step in enumerate(steps, 1)]
    sources = getattr(result.data, "sources", ABSENT)
    if isinstance(sources, Mapping):
        rows = tuple((name, value_text(s.value), s.source.replace("-", " ")) for name, s in sources.items())
        blocks += ["", Table(("FIELD", "VALUE", "SOURCE"), rows)]
    return Page(blocks)


def value_text(value: object) -> str:
    """Return any value as text: `a=1, b=2`, `a, b`, `yes`."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return or_dash(value)


def mib(value: int | None) -> str:
    """Return a size in MiB for people, "?" if it is unknown."""
    return "?" if value is None else format_mib(value)


def size(value: int | None) -> str:
    """Return a size in bytes for people, "?" if it is unknown."""
    return "?" if value is None else format_bytes(value)


def holder(vgpu: VgpuResult) -> str:
    """Name who has a vGPU: the VM, or the carrier of an unmanaged or leaked one."""
    return vm_label(vgpu) if vgpu.vm or vgpu.name else f"{vgpu.carrier} ({vgpu.ownership})"


def shorten_names(names: Sequence[str]) -> str:
    """Return the names, each once with its count; of many names the first ones and the last."""
    labels = [name if n == 1 else f"{name} ({n})" for name, n in Counter(names).items()]
    if len(labels) <= MAX_NAMES:
        return ", ".join(labels)
    return f"{', '.join(labels[: MAX_NAMES - 2])} \N{HORIZONTAL ELLIPSIS} {labels[-1]}"


def vgpus_text(vgpus: Sequence[VgpuResult]) -> str:
    """Return a VM's vGPUs in one cell."""
    counts = Counter(_vgpu_cell(v) for v in vgpus)
    return ", ".join(label if n == 1 else f"{n} x {label}" for label, n in counts.items()) or "-"


def vm_label(vgpu: VgpuResult) -> str:
    """Return the VM of a vGPU, and its name if host.yaml lists it: `vGPU spare`, `vdi-001 (vGPU spare)`."""
    name, users = f"vGPU {vgpu.name}" if vgpu.name else "", vgpu_users(vgpu)
    return f"{users} ({name})" if name and users else name or or_dash(users)


def vgpu_users(vgpu: VgpuResult) -> str:
    """Return the VMs that name a vGPU, its own first: `web (lacks it), web-clone`; "" if there is none."""
    own = f"{vgpu.vm} (lacks it)" if vgpu.vm and vgpu.attached is False else vgpu.vm
    return ", ".join(filter(None, (own, *vgpu.other_vms)))


def _vgpu_cell(vgpu: VgpuResult) -> str:
    if not vgpu.present and vgpu.reason:
        return f"{vgpu.profile or vgpu.carrier} ({vgpu.reason})"
    return f"{vgpu.profile} on {vgpu.gpu}" if vgpu.profile else str(vgpu.carrier)


def device_item(vgpu: VgpuResult, vm: str) -> tuple[str, str]:
    """Return the label and the line of a VM's device: a whole GPU, or a VF without a profile, is no vGPU."""
    line = vgpu_line(vgpu, vm)
    return ("vgpu", line) if vgpu.profile else ("gpu", line.removeprefix("GPU "))


def vgpu_count(vgpus: Sequence[VgpuResult]) -> str:
    """Return how many vGPUs there are, and how many are missing or not vgpuctl's: `2 (1 missing, 1 unmanaged)`."""
    missing = sum(not v.present for v in vgpus)
    notes = [f"{missing} missing"] if missing else []
    notes += [f"{n} {owner}" for owner in ("unmanaged", "leaked") if (n := sum(v.ownership == owner for v in vgpus))]
    return f"{len(vgpus)} ({', '.join(notes)})" if notes else str(len(vgpus))


def drawn_line(gpu: str) -> str:
    """Return what a VM of mode virtio-gpu has. `gpu`: the address of the GPU, or its device node."""
    return f"none of its own: QEMU draws on {gpu} (virtio-gpu)"


def vgpu_line(vgpu: VgpuResult, vm: str | None = None) -> str:
    """Return what a vGPU is, where it is, and if it is missing: `A100-4C on GPU 0000:3b:00.0 (CARRIER, missing)`.

    `vm`: the VM that is shown; it may only name the vGPU of another VM.
    """
    line = f"{vgpu.profile} on GPU {vgpu.gpu}" if vgpu.profile else f"GPU {vgpu.gpu}"
    line += f", {location(vgpu)}" if location(vgpu) else ""
    line += f" with {', '.join(vgpu.companions)}" if vgpu.companions else ""
    missing = "" if vgpu.present else f", {vgpu.reason or 'missing'}"
    missing += ", but the running VM lacks it" if vgpu.attached is False else ""
    missing += f", of {vgpu.vm}" if vm and vgpu.vm not in (None, vm) else ""
    others = [name for name in vgpu.other_vms if name != vm]
    missing += f", also in {', '.join(others)}" if others else ""
    return f"{line} ({vgpu.carrier}{missing})" if vgpu.carrier != vgpu.gpu else f"{line}{missing}"


def location(vgpu: VgpuResult) -> str:
    """Return where a vGPU is on its GPU, "" if there is nothing to show: `placement 24`, `GPU instance 3`."""
    if vgpu.placement_id is not None:
        return f"placement {vgpu.placement_id}"
    if vgpu.gpu_instance_id is not None:
        return f"GPU instance {vgpu.gpu_instance_id}"
    return ""


def or_unknown(value: object) -> str:
    """Return a value as text, `?` if it is unknown."""
    return "?" if value is None else str(value)


def free_count(profile: ProfileResult | TypeResult | RoomResult | ReasonResult | ExplainResult | BarrierResult) -> str:
    """Return how many more fit: a number, `at least N` if only a minimum is known, or `?`."""
    minimum = profile.free_at_least
    return f"at least {minimum}" if profile.free is None and minimum else or_unknown(profile.free)


def or_dash(value: object) -> str:
    """Return a value as text, `-` if there is none."""
    return "-" if value is None or value == "" else str(value)


def name_or_count(names: Sequence[str], noun: str) -> str:
    """Return one name, the number of several, `-` for none."""
    return names[0] if len(names) == 1 else f"{len(names)} {noun}" if names else "-"


def known_texts(values: Sequence[str | None]) -> tuple[str, ...]:
    """Return the values that are known, each once."""
    return tuple(dict.fromkeys(value for value in values if value))


def network_line(network: NetworkResult) -> str:
    """Return a network card: its network or bridge, model and address."""
    tag = f" VLAN {network.vlan}" if network.vlan is not None else ""
    source = network.network or (f"bridge {network.bridge}" if network.bridge else "another kind of card")
    return f"{source}{tag}, {network.model or 'no model'}, {network.mac or 'no address yet'}"


def disk_line(disk: DiskResult | KeptDiskResult) -> str:
    """Return a disk: its path, size, and the image that it is a clone or copy of."""
    if getattr(disk, "device", "disk") == "cdrom" and disk.size_bytes is None:
        return f"{disk.path} (cdrom)"
    base = f", clone of {disk.base}" if disk.base else f", copy of {disk.copied_from}" if disk.copied_from else ""
    return f"{disk.path} ({size(disk.size_bytes)}{base})"
