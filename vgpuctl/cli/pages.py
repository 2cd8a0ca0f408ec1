# SPDX-License-Identifier: Apache-2.0
"""The pages people read, made from the same `data` that programs get: nothing is shown that JSON does not have.

Unknown is `?`, nothing is `-`. What a page says beside its result goes to stderr.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from vgpuctl.cli.tables import Block, Pairs, Table
from vgpuctl.model.sizes import bytes_text, mib_text
from vgpuctl.value import Value

Data = Mapping[str, Any]
MANY_NAMES = 8
NUMBERS = frozenset({"MEMORY", "MAX/GPU", "FREE"})


class Page(Value):
    """Blocks for stdout and lines for stderr."""

    blocks: Sequence[Block] = ()
    asides: Sequence[str] = ()


def page(kind: str, data: Any) -> Page:
    """Return the page of a command's data."""
    return _PAGES.get(kind, _changed)(data)


def _gpus(data: Sequence[Data]) -> Page:
    if not data:
        return Page(asides=["no GPUs here; list-gpus --all also lists other devices that a VM can be given"])
    headers = (
        "ADDRESS", "MODEL", "BACKEND", "MODE", "DRIVER", "MEMORY", "NUMA", "IOMMU", "VFS", "VGPUS",
    )  # fmt: skip
    rows = tuple(
        (
            gpu["address"], gpu["model"], _or_dash(gpu["backend"]), _mode(gpu), _or_dash(gpu["driver"]),
            mib(gpu["framebuffer_mib"]), _or_dash(gpu["numa_node"]), _or_dash(gpu["iommu_group"]),
            _vfs(gpu["vfs"]), _counted(gpu["vgpus"]),
        )
        for gpu in data
    )  # fmt: skip
    problems = [f"{gpu['address']}: {problem}" for gpu in data for problem in gpu.get("problems", ())]
    return Page([Table(headers, rows, frozenset({"MEMORY", "NUMA", "IOMMU"}))], problems)


def _gpu(data: Data) -> Page:
    from vgpuctl.cli import partition_pages, scheduler_pages

    pairs = Pairs(
        (
            ("address", data["address"]),
            ("model", data["model"]),
            ("backend", _or_dash(data["backend"])),
            ("mode", _mode(data)),
            ("driver", _or_dash(data["driver"])),
            ("memory", mib(data["framebuffer_mib"])),
            ("numa node", _or_dash(data["numa_node"])),
            ("iommu group", _or_dash(data["iommu_group"])),
            ("vfs", _vfs(data["vfs"])),
            ("vgpus", _counted(data["vgpus"])),
            *partition_pages.pairs(data),
            *scheduler_pages.pairs(data),
            *(("problem", problem) for problem in data.get("problems", ())),
        )
    )
    blocks: list[Block] = [pairs, *_vgpu_table(data["vgpus"]), *scheduler_pages.table(data)]
    if data.get("types"):
        rows = tuple(
            (
                known["profile"],
                known["type_id"],
                mib(known["framebuffer_mib"]),
                unknown(known["max_per_gpu"]),
                how_many(known),
            )
            for known in data["types"]
        )
        blocks += ["", Table(("PROFILE", "TYPE", "MEMORY", "MAX/GPU", "FREE"), rows, NUMBERS)]
    return Page(blocks)


def _vgpu_table(vgpus: Sequence[Data]) -> list[Block]:
    """Return the table of what is on a GPU; what is the same nothing for all of them has no column."""
    if not vgpus:
        return []
    from vgpuctl.cli.partition_pages import place

    columns = [
        ("CARRIER", [", ".join([v["carrier"], *v.get("companions", ())]) for v in vgpus]),
        ("PROFILE", [unknown(v["profile"]) for v in vgpus]),
        ("VM", [_who(v) for v in vgpus]),
        ("OWNER", [v["owner"] for v in vgpus]),
        ("WHERE", [_or_dash(place(v) or None) for v in vgpus]),
        ("REASON", [_or_dash(v.get("reason")) for v in vgpus]),
    ]
    shown = [(name, cells) for name, cells in columns if name not in ("WHERE", "REASON") or {*cells} != {"-"}]
    rows = tuple(zip(*(cells for _, cells in shown), strict=True))
    return ["", Table(tuple(name for name, _ in shown), rows)]


def _vms(data: Sequence[Data]) -> Page:
    if not data:
        return Page(asides=["no VMs here"])
    rows = tuple((vm["name"], vm["state"], vm["owner"], vgpus_text(vm["vgpus"]), vm["uuid"]) for vm in data)
    return Page([Table(("NAME", "STATE", "OWNER", "VGPUS", "UUID"), rows)])


def _vm(data: Data) -> Page:
    known = ("name", "uuid", "state", "memory_mib", "vgpus", "disks")
    more = [
        (name.replace("_", " "), _or_dash(value))
        for name, value in data.items()
        if name not in known and isinstance(value, (str, int)) and not isinstance(value, bool)
    ]
    items = [("name", data["name"]), ("uuid", _or_dash(data["uuid"])), ("state", data["state"])]
    items += [("memory", mib(data["memory_mib"])), *more]
    items += [("vgpu", vgpu_line(v)) for v in data["vgpus"]]
    items += [("disk", _disk_line(disk)) for disk in data["disks"]]
    return Page([Pairs(tuple(items))])


def _changed(data: Data) -> Page:
    """A changing command: its steps in a dry run, otherwise what is there now."""
    if "xml" in data and "steps" not in data:
        return Page([str(data["xml"]).rstrip()])
    if data.get("dry_run"):
        return dry_run(data)
    if "vms" in data:
        return _several(data)
    blocks: list[Block] = []
    if "name" in data:
        state = data.get("state")
        blocks.append(f"{data['name']}: {state}" if state else str(data["name"]))
        blocks += [f"  vgpu  {vgpu_line(v)}" for v in data.get("vgpus") or ()]
        blocks += [f"  disk  {_disk_line(disk)}" for disk in data.get("disks") or ()]
        blocks += [f"  guest {each['address']}" for each in (data.get("guest") or {}).get("addresses", ())]
    if not data["steps"]:
        blocks.append("nothing to do" if not blocks else "  nothing to do")
    return Page(blocks or [f"{len(data['steps'])} steps done"])


def _several(data: Data) -> Page:
    """Several VMs: each in a line, and how many of them are new."""
    rows = tuple(
        (vm["name"], vm["state"], "made" if vm["changed"] else "was there", vgpus_text(vm["vgpus"]))
        for vm in data["vms"]
    )
    new = sum(vm["changed"] for vm in data["vms"])
    return Page([Table(("NAME", "STATE", "THIS TIME", "VGPUS"), rows), "", f"{len(rows)} VMs, {new} of them made now"])


def _changed_gpu(data: Data) -> Page:
    """A GPU that was changed: its steps in a dry run, otherwise how it stands now."""
    if data["dry_run"]:
        return dry_run(data)
    done = "" if data["steps"] else "; nothing to do"
    vfs = f", VFs {_vfs(data['vfs'])}" if data["vfs"]["total"] else ""
    return Page([f"{data['address']}: {_mode(data)}{_partition(data)}{vfs}{done}"])


def _partition(data: Data) -> str:
    """Return what a GPU's vGPUs are in, where that is not the whole GPU in one size."""
    found = data.get("partition") or {}
    if found.get("mig"):
        return f", MIG with {shortened(found['instances']) or 'no GPU instance'}"
    return ", mixed sizes" if found.get("mixed_size") else ""


def _changed_scheduler(data: Data) -> Page:
    """A GPU whose scheduler was set: its steps in a dry run, otherwise what runs now or will."""
    from vgpuctl.cli import scheduler_pages

    if data["dry_run"]:
        return dry_run(data)
    return Page([f"{scheduler_pages.changed(data)}{'' if data['steps'] else '; nothing to do'}"])


def _mode(gpu: Data) -> str:
    """Return what a GPU is and is kept for: `vgpu`, `unmanaged (kept for passthrough)`, `vgpu, cordoned`."""
    kept = gpu.get("desired_mode")
    so = kept in (None, gpu["mode"]) or (kept, gpu["mode"]) == ("vgpu", "mig-vgpu")
    mode = gpu["mode"] if so else f"{gpu['mode']} (kept for {kept})"
    reserved = f", for {' or '.join(gpu['reserved_for'])}" if gpu.get("reserved_for") else ""
    return f"{mode}{', cordoned' if gpu.get('cordoned') else ''}{reserved}"


def _reconciled(data: Data) -> Page:
    """What was found, with what is done about it, and in a dry run every step."""
    if not data["findings"]:
        return Page(["nothing to do"])
    blocks: list[Block] = []
    for finding in data["findings"]:
        blocks += [finding["what"], f"  {finding['action']}"]
    if data["dry_run"] and data["steps"]:
        blocks += ["", *dry_run(data).blocks]
    return Page(blocks)


def _examined(data: Data) -> Page:
    """Show what is wrong with evidence and fix, and everything else in one line each."""
    rows = tuple((check["verdict"], check["id"], check["title"]) for check in data["checks"])
    blocks: list[Block] = [Table(("VERDICT", "CHECK", "WHAT SHOULD BE"), rows)]
    for check in data["checks"]:
        if check["verdict"] in ("fail", "warn", "unknown"):
            blocks += ["", f"{check['id']} ({check['verdict']}):", *(f"  {line}" for line in check["evidence"])]
            blocks += [f"  fix: {check['fix']}"] if check["fix"] else []
    if data["dry_run"]:
        blocks += ["", *dry_run(data).blocks]
    return Page(blocks)


def dry_run(data: Data) -> Page:
    """Return the steps of a dry run, and where each value came from."""
    steps = list(data["steps"])
    width = len(str(len(steps)))
    blocks: list[Block] = ["would do:" if steps else "nothing to do"]
    blocks += [f"  {number:>{width}}  {step}" for number, step in enumerate(steps, 1)]
    sources = data.get("sources") or {}
    if sources:
        rows = tuple((name, _value(s["value"]), s["source"]) for name, s in sources.items())
        blocks += ["", Table(("FIELD", "VALUE", "FROM"), rows)]
    return Page(blocks)


def _page_of(module: str, name: str) -> Callable[[Any], Page]:
    """Return a page of another module, imported when it is printed."""

    def made(data: Any) -> Page:
        found: Page = import_module(f"vgpuctl.cli.{module}").PAGES[name](data)
        return found

    return made


_PAGES: dict[str, Callable[[Any], Page]] = {
    "list-gpus": _gpus,
    "show-gpu": _gpu,
    "list-profiles": _page_of("profile_pages", "list-profiles"),
    "explain": _page_of("profile_pages", "explain"),
    "fits": _page_of("profile_pages", "fits"),
    "plan-moves": _page_of("profile_pages", "plan-moves"),
    "list-vms": _vms,
    "console": _page_of("guest_pages", "console"),
    "address": _page_of("guest_pages", "address"),
    "list-images": _page_of("guest_pages", "list-images"),
    "reconcile": _reconciled,
    "doctor": _examined,
    "show-vm": _vm,
    "simulate": _page_of("simulation_pages", "simulate"),
    **{name: _page_of("vgpu_pages", name) for name in ("create-vgpu", "ensure-vgpu", "delete-vgpu", "list-vgpus")},
    "apply": _page_of("host_pages", "apply"),
    "diff": _page_of("host_pages", "diff"),
    "set-mode": _changed_gpu,
    "set-mig": _changed_gpu,
    "set-mixed-size": _changed_gpu,
    "set-scheduler": _changed_scheduler,
    "cordon": _changed_gpu,
    "uncordon": _changed_gpu,
    "sim-list-scenarios": _page_of("simulation_pages", "sim-list-scenarios"),
    "sim-reboot": _page_of("simulation_pages", "sim-reboot"),
    "sim-reset": _page_of("simulation_pages", "sim-reset"),
}


def mib(value: int | None) -> str:
    """Return a size in MiB for people, "?" where it is not known."""
    return "?" if value is None else mib_text(value)


def size(value: int | None) -> str:
    """Return a size in bytes for people, "?" where it is not known."""
    return "?" if value is None else bytes_text(value)


def holder(vgpu: Data) -> str:
    """Name who has a vGPU: the VM, or the carrier of a foreign or leaked one."""
    return _who(vgpu) if vgpu["vm"] or vgpu.get("name") else f"{vgpu['carrier']} ({vgpu['owner']})"


def shortened(names: Sequence[str]) -> str:
    """Return the names, each once with how often it is there, and of many the first and the last."""
    each = [name if n == 1 else f"{name} ({n})" for name, n in Counter(names).items()]
    if len(each) <= MANY_NAMES:
        return ", ".join(each)
    return f"{', '.join(each[: MANY_NAMES - 2])} \N{HORIZONTAL ELLIPSIS} {each[-1]}"


def vgpus_text(vgpus: Sequence[Data]) -> str:
    """Return a VM's vGPUs in one cell."""
    each = Counter(_vgpu_cell(v) for v in vgpus)
    return ", ".join(what if n == 1 else f"{n} x {what}" for what, n in each.items()) or "-"


def _who(vgpu: Data) -> str:
    """Return the VM of a vGPU, and the name of one that host.yaml keeps: `vGPU spare`, `vdi-001 (vGPU spare)`."""
    name = f"vGPU {vgpu['name']}" if vgpu.get("name") else ""
    return f"{vgpu['vm']} ({name})" if name and vgpu["vm"] else name or _or_dash(vgpu["vm"])


def _vgpu_cell(vgpu: Data) -> str:
    if not vgpu.get("present", True) and vgpu.get("reason"):
        return f"{vgpu['profile'] or vgpu['carrier']} ({vgpu['reason']})"
    return f"{vgpu['profile']} on {vgpu['gpu']}" if vgpu["profile"] else str(vgpu["carrier"])


def vgpu_line(vgpu: Data) -> str:
    """Return what a vGPU is, where it is and whether it is there: `A100-4C on GPU 0000:3b:00.0 (CARRIER, missing)`."""
    from vgpuctl.cli.partition_pages import place

    what = f"{vgpu['profile']} on GPU {vgpu['gpu']}" if vgpu.get("profile") else f"GPU {vgpu['gpu']}"
    what += f", {place(vgpu)}" if place(vgpu) else ""
    what += f" with {', '.join(vgpu['companions'])}" if vgpu.get("companions") else ""
    missing = "" if vgpu.get("present", True) else f", {vgpu.get('reason') or 'missing'}"
    return f"{what} ({vgpu['carrier']}{missing})" if vgpu["carrier"] != vgpu["gpu"] else f"{what}{missing}"


def _disk_line(disk: Data) -> str:
    if disk.get("device") == "cdrom" and disk["size_bytes"] is None:
        return f"{disk['path']} (cdrom)"
    base = f", clone of {disk['base']}" if disk.get("base") else ""
    return f"{disk['path']} ({size(disk['size_bytes'])}{base})"


def _counted(vgpus: Sequence[Data]) -> str:
    if not vgpus:
        return "0"
    others = [f"{n} {word}" for word in ("foreign", "leaked") if (n := sum(v["owner"] == word for v in vgpus))]
    return f"{len(vgpus)} ({', '.join(others)})" if others else str(len(vgpus))


def _vfs(vfs: Data) -> str:
    if not vfs["total"]:
        return "-"
    return f"{vfs['enabled']}/{vfs['total']}, {vfs['used']} used"


def _value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _or_dash(value)


def unknown(value: object) -> str:
    """Return a value as it is shown, `?` for what is not known."""
    return "?" if value is None else str(value)


def how_many(known: Data) -> str:
    """Return how many more fit: a number, `at least` one where no more is known, or `?`."""
    least = known.get("free_at_least")
    return f"at least {least}" if known["free"] is None and least else unknown(known["free"])


def _or_dash(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
