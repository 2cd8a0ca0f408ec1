# SPDX-License-Identifier: Apache-2.0
"""The pages for people, made from the same `data` that programs get: a page shows nothing that JSON lacks.

`?` means unknown, `-` means none. Lines that are not part of the result go to stderr.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vgpuctl.cli import listings
from vgpuctl.cli.cells import (
    device_item,
    mib,
    or_dash,
    size,
    vgpus_text,
)
from vgpuctl.cli.command_table import LISTINGS
from vgpuctl.cli.tables import Block, Pairs, Table
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import VMS_UNKNOWN, AnyResult, Outcome
from vgpuctl.model.results import vms as vm_results
from vgpuctl.model.results.fields import ABSENT
from vgpuctl.model.results.targets import TargetsResult
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.cli.listings import View
    from vgpuctl.model.results.host import DoctorResult, LogEntryResult, ReconcileResult
    from vgpuctl.model.results.vms import (
        ChangedVmResult,
        DiskResult,
        KeptDiskResult,
        ManyVmsResult,
        NetworkResult,
        VmReport,
        VmResult,
        VmRowResult,
        XmlResult,
    )

NUMERIC_HEADERS = frozenset({"MEMORY", "MAX/GPU", "FREE"})


class Page(Value):
    """Blocks for stdout and lines for stderr."""

    blocks: Sequence[Block] = ()
    stderr_lines: Sequence[str] = ()


def page(kind: str, result: AnyResult, view: View | None = None) -> Page:
    """Return the page of a command's result: of its data, for a change of the outcome with its steps.

    A list's table has the columns of the view; its own page adds what goes to stderr.
    """
    if isinstance(result.data, TargetsResult):
        return _lazy_page("target_pages", "targets")((kind, result))
    if kind in LISTINGS and isinstance(result.data, tuple):
        page = _list_page(kind, result.data, view or listings.DEFAULT_VIEW)
        are_unknown = kind == "list-vms" and not result.data and _are_vms_unknown(result)
        return Page() if are_unknown else page
    return single_page(kind, result)


def single_page(kind: str, result: AnyResult) -> Page:
    """Return the page of a command's result for one VM, vGPU, GPU or host."""
    return _PAGES.get(kind, _vm_change_page)(result if isinstance(result, Outcome) else result.data)


def _are_vms_unknown(result: AnyResult) -> bool:
    """Say whether libvirt did not answer; then a list without VMs means nothing."""
    return any(warning.startswith(VMS_UNKNOWN) for warning in result.warnings)


def _list_page(kind: str, rows: tuple[object, ...], view: View) -> Page:
    if not rows and view.filters:
        return Page(stderr_lines=[f"nothing matches --filter {shlex.quote(','.join(view.filters))}"])
    if not rows and view.nothing is not None:
        return Page(stderr_lines=[view.nothing])
    listing = listings.find_listing(kind)
    blocks = [listings.make_table(listing, view, rows)] if listing is not None and rows else []
    return replace(_PAGES[kind](rows), blocks=blocks)


def _vms(data: tuple[VmRowResult, ...]) -> Page:
    return Page(stderr_lines=[] if data else ["no VMs here"])


def _log(data: tuple[LogEntryResult, ...]) -> Page:
    return Page(stderr_lines=[] if data else ["no such commands in the log"])


def _vm(data: VmResult) -> Page:
    other_fields = ("ownership", "owner", "record", "vcpus", "firmware", "reserve", "spread_group")
    other_pairs = [(name.replace("_", " "), getattr(data, name)) for name in other_fields]
    items: list[tuple[str, str]] = [("name", data.name), ("uuid", data.uuid), ("state", data.state)]
    items += [("memory", mib(data.memory_mib))]
    items += [(title, or_dash(value)) for title, value in other_pairs if value is not None]
    items += [("hugepages", data.hugepages)] if data.hugepages != "none" else []
    items += [("cpus", _pins_line(data))] if data.pinned_cpus or data.memory_nodes else []
    items += [("display", "the first vGPU's screen is in the console")] if data.display else []
    items += [("network", _network_line(network)) for network in data.networks]
    files = (("user-data", data.cloud_init), ("network-config", data.network_config))
    items += [("cloud-init", f"{what} {path}") for what, path in files if path]
    items += [("labels", _value_text(data.labels))] if data.labels else []
    items += [device_item(v, data.name) for v in data.vgpus]
    items += [("disk", _disk_line(disk)) for disk in data.disks]
    return Page([Pairs(tuple(items))])


def _network_line(network: NetworkResult) -> str:
    tag = f" VLAN {network.vlan}" if network.vlan is not None else ""
    source = network.network or (f"bridge {network.bridge}" if network.bridge else "another kind of card")
    return f"{source}{tag}, {network.model or 'no model'}, {network.mac or 'no address yet'}"


def _pins_line(data: VmResult) -> str:
    memory = f", memory on NUMA node {data.memory_nodes}" if data.memory_nodes else ""
    return f"{data.pinned_cpus or 'any'}{memory}"


def _vm_change_page(result: Outcome[ChangedVmResult | VmReport | vm_results.ManyVmsResult] | XmlResult) -> Page:
    """A VM or several that were changed: the steps in a dry run, otherwise the resulting state."""
    if not isinstance(result, Outcome):
        return Page([result.xml.rstrip()])
    if result.dry_run:
        return dry_run(result)
    data = result.data
    if isinstance(data, vm_results.ManyVmsResult):
        return _batch_page(data)
    blocks: list[Block] = [f"{data.name}: {data.state}"]
    blocks += [f"  {label:<4}  {text}" for label, text in (device_item(v, data.name) for v in data.vgpus)]
    blocks += [f"  disk  {_disk_line(disk)}" for disk in data.disks]
    if isinstance(data, vm_results.ChangedVmResult):
        blocks += [f"  net   {_network_line(network)}" for network in data.networks]
    guest = getattr(data, "guest", ABSENT)
    blocks += [f"  guest {entry.address}" for entry in (guest.addresses if guest is not ABSENT else ())]
    return Page([*blocks, *([] if result.steps else ["  nothing to do"])])


def _batch_page(data: ManyVmsResult) -> Page:
    """Several VMs: one per line, and how many of them were created, started, stopped or deleted."""
    if not data.vms:
        return Page(["none of these VMs exists; nothing to do"])
    rows = tuple((vm.name, vm.state, vm.result, vgpus_text(vm.vgpus)) for vm in data.vms)
    counts = Counter(vm.result for vm in data.vms if vm.changed) or {"created": 0}
    table = Table(("NAME", "STATE", "RESULT", "VGPUS"), rows, states=frozenset({"STATE", "RESULT"}))
    return Page([table, "", f"{count_text(len(rows), 'VM')}, {', '.join(f'{n} {word}' for word, n in counts.items())}"])


def _steps_page(result: Outcome[object]) -> Page:
    """A change of which people see the steps: those of a dry run, or how many were done."""
    if result.dry_run:
        return dry_run(result)
    return Page([f"{count_text(len(result.steps), 'step')} done" if result.steps else "nothing to do"])


def _reconcile_page(result: Outcome[ReconcileResult]) -> Page:
    """The findings, each with its action, and in a dry run every step."""
    if not result.data.findings:
        return Page(["nothing to do"])
    blocks: list[Block] = []
    for finding in result.data.findings:
        blocks += [finding.what, f"  {finding.action}"]
    if result.dry_run and result.steps:
        blocks += ["", *dry_run(result).blocks]
    return Page(blocks)


def _doctor_page(result: Outcome[DoctorResult]) -> Page:
    """List every check in one line, then each problem with its evidence and fix."""
    rows = tuple((check.verdict, check.id, check.title) for check in result.data.checks)
    blocks: list[Block] = [
        Table(("VERDICT", "ID", "CHECK"), rows, free_text=frozenset({"CHECK"}), states=frozenset({"VERDICT"}))
    ]
    for check in result.data.checks:
        if check.verdict in ("fail", "warn", "unknown"):
            blocks += ["", f"{check.id} ({check.verdict}):", *(f"  {line}" for line in check.evidence)]
            blocks += [f"  fix: {check.fix}"] if check.fix else []
    if result.dry_run:
        blocks += ["", *dry_run(result).blocks]
    return Page(blocks)


def dry_run(result: Outcome[object]) -> Page:
    """Return the steps of a dry run, and where each value came from."""
    steps = result.steps
    width = len(str(len(steps)))
    blocks: list[Block] = ["would do:" if steps else "nothing to do"]
    blocks += [f"  {number:>{width}}  {step}" for number, step in enumerate(steps, 1)]
    sources = getattr(result.data, "sources", ABSENT)
    if isinstance(sources, Mapping):
        rows = tuple((name, _value_text(s.value), s.source.replace("-", " ")) for name, s in sources.items())
        blocks += ["", Table(("FIELD", "VALUE", "SOURCE"), rows)]
    return Page(blocks)


def join_pages(sections: Sequence[tuple[str, Sequence[Block]]], header: str) -> list[Block]:
    """Join the pages of several hosts or VMs; if each is one table with the same headers, the result is one table.

    `header`: of the column with their names.
    """
    non_empty = [(name, blocks) for name, blocks in sections if blocks]
    single_blocks = [
        (name, blocks[0]) for name, blocks in non_empty if len(blocks) == 1 and isinstance(blocks[0], Table)
    ]
    host_tables = [(name, block) for name, block in single_blocks if isinstance(block, Table)]
    if host_tables and len(host_tables) == len(non_empty) and len({table.headers for _, table in host_tables}) == 1:
        rows = tuple((name, *row) for name, table in host_tables for row in table.rows)
        first = host_tables[0][1]
        return [replace(first, headers=(header, *first.headers), rows=rows)]
    pages_: list[Block] = []
    for name, blocks in non_empty:
        pages_ += [*([""] if pages_ else []), f"== {name}", *blocks]
    return pages_


def _lazy_page(module: str, name: str) -> Callable[[Any], Page]:
    """Return a page function that imports another module when it renders its page."""

    def render(shown: Any) -> Page:
        rendered: Page = import_module(f"vgpuctl.cli.{module}").PAGES[name](shown)
        return rendered

    return render


_GPU_KINDS = (
    "list-gpus", "show-gpu", "set-mode", "set-mig", "set-mixed-size", "set-scheduler", "cordon", "uncordon",
    "create-vgpu", "ensure-vgpu", "delete-vgpu", "list-vgpus",
)  # fmt: skip
_PAGES: dict[str, Callable[[Any], Page]] = {
    **{name: _lazy_page("gpu_pages", name) for name in _GPU_KINDS},
    "list-profiles": _lazy_page("profile_pages", "list-profiles"),
    "explain": _lazy_page("profile_pages", "explain"),
    "fits": _lazy_page("profile_pages", "fits"),
    "plan-moves": _lazy_page("profile_pages", "plan-moves"),
    "move-vms": _lazy_page("profile_pages", "move-vms"),
    "list-vms": _vms,
    "wait": _lazy_page("guest_pages", "wait"),
    "show-console": _lazy_page("guest_pages", "show-console"),
    "show-address": _lazy_page("guest_pages", "show-address"),
    "list-images": _lazy_page("guest_pages", "list-images"),
    "log": _log,
    "reconcile-host": _reconcile_page,
    "restore-host": _steps_page,
    "install-host": _steps_page,
    "uninstall-host": _steps_page,
    "doctor": _doctor_page,
    "show-vm": _vm,
    "apply": _lazy_page("apply_pages", "apply"),
    "diff": _lazy_page("apply_pages", "diff"),
    "sim-list-scenarios": _lazy_page("sim_pages", "sim-list-scenarios"),
    "sim-reboot": _lazy_page("sim_pages", "sim-reboot"),
    "sim-reset": _lazy_page("sim_pages", "sim-reset"),
}


def _disk_line(disk: DiskResult | KeptDiskResult) -> str:
    if getattr(disk, "device", "disk") == "cdrom" and disk.size_bytes is None:
        return f"{disk.path} (cdrom)"
    base = f", clone of {disk.base}" if disk.base else f", copy of {disk.copied_from}" if disk.copied_from else ""
    return f"{disk.path} ({size(disk.size_bytes)}{base})"


def _value_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return or_dash(value)
