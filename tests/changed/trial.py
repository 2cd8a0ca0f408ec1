# SPDX-License-Identifier: Apache-2.0
"""Runs one command on a host that changed, and judges it by rules that hold on any host.

1. The exit status is a documented one, and nothing says that vgpuctl has a bug.
2. Nothing waits for what cannot come.
3. What is shown is so: devices, states, room; a start that worked gave the VM its devices.
4. Every hint that is a command of vgpuctl is accepted when it is pasted, and none comes again in a loop.
5. Nobody is told to delete a VM that has all it needs.
6. Nothing of an unmanaged VM changes, no disk goes, and reconcile-host leaves nothing without an owner.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any

from tests.changed.backends import FIRST, KINDS, VMS, Kind, prepare
from tests.changed.changes import CHANGES, Change
from tests.changed.hints import commands_in, follow, is_reading, refused, texts_of
from tests.changed.site import Ran, Site, Truth, truth_of
from vgpuctl.domain.domain_xml import parse_disk_sources

STATUSES = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 75})
MAX_SECONDS, MAX_BUSY_SECONDS, MAX_BOOT_SECONDS = 10, 61, 25
_BUG = re.compile(r"Traceback|bug in vgpuctl|internal error(?!: (?:QEMU|process|Failed))", re.IGNORECASE)
_DELETE = re.compile(r"delete-vm|\b(?:delete|remove) (?:that|those|the|these|this|its|both) VMs?\b", re.IGNORECASE)
ROUNDS = 4


@dataclass(frozen=True)
class Cell:
    """One trial: a host's kind, what changed, how the VM was, and a command."""

    kind: Kind
    change: Change
    vm: str
    command: str

    @property
    def name(self) -> str:
        """Return which trial it is."""
        return f"{self.kind.name} | {self.change.name} | {self.vm} | {self.command}"


@dataclass(frozen=True)
class Result:
    """The result of a trial: the command's status, and the broken rules."""

    cell: Cell
    status: int
    wrong: tuple[str, ...]


def all_cells() -> Iterator[Cell]:
    """Yield every trial."""
    for kind in KINDS:
        for change in CHANGES:
            for vm in change.vms_of(kind):
                yield from (Cell(kind, change, vm, command) for command in COMMANDS if _applies(command, kind))


def _applies(command: str, kind: Kind) -> bool:
    return bool(kind.profile) or command not in ("explain", "set-vm")


class Trials:
    """Runs trials in a directory. Each is on a copy of a host that is created once."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._made: dict[tuple[str, str], Site] = {}
        self._changed: tuple[tuple[str, str, str], Site] | None = None

    def run(self, cell: Cell) -> Result:
        """Run one trial."""
        site = self._changed_site(cell).copy(self.directory / "trial")
        before = Before(site)
        ran, wrong = COMMANDS[cell.command](site, cell)
        wrong += judge_lists(site)
        wrong += settle(site)
        wrong += before.compare(cell.command)
        wrong += [text for each in site.ran for text in judge_run(each, cell)]
        rmtree(site.directory)
        return Result(cell, ran.status, tuple(dict.fromkeys(wrong)))

    def _changed_site(self, cell: Cell) -> Site:
        """Return the host after the change; the commands of one row share it."""
        key = cell.kind.name, cell.change.name, cell.vm
        if self._changed is None or self._changed[0] != key:
            made = self._made.get(key[::2])
            if made is None:
                made = self._made[key[::2]] = prepare(
                    cell.kind, cell.vm, self.directory / f"{cell.kind.name}-{VMS.index(cell.vm)}"
                )
            if self._changed is not None:
                rmtree(self._changed[1].directory)
            changed = made.copy(self.directory / "changed")
            cell.change.act(changed, cell.kind)
            self._changed = key, changed
        return self._changed[1]


# ------------------------------------------------------------------------------ commands


Judged = tuple[Ran, list[str]]


def _main(site: Site, *words: str) -> Judged:
    """Run the command, and paste its hints."""
    ran = site.run(*words)
    return ran, follow(site, ran)


def _list(site: Site, cell: Cell) -> Judged:
    ran = site.run("list-vgpus")
    wrong: list[str] = []
    for line in ("list-gpus", "list-vms", "list-profiles", "list-images", "show-vm web"):
        shown = site.run(*line.split())
        wrong += [f"{line} fails: {shown.error.get('message')}"] if shown.status else []
    return ran, wrong + follow(site, site.run("show-gpu", FIRST))


def _explain(site: Site, cell: Cell) -> Judged:
    return _main(site, "explain", cell.kind.profile)


def _create(site: Site, cell: Cell) -> Judged:
    room = _room(site, cell.kind)
    words = cell.kind.request("new").split()
    ran = site.run(*words)
    wrong = judge_running(site, "new") if not ran.status else []
    if room is not None and (ran.status == 0) != (room > 0):
        wrong.append(f"list-profiles says {room} more fit, and create-vm exits with {ran.status}: {_message(ran)}")
    return ran, wrong + (follow(site, ran) if ran.status else [])


def _room(site: Site, kind: Kind) -> int | None:
    """Return how many more of the profile fit according to list-profiles; 0 if it is not in the list."""
    if not kind.profile:
        return None
    rows = site.run("list-profiles").data or []
    return next((row["free"] for row in rows if row["profile"] == kind.profile), 0)


def _start(site: Site, cell: Cell) -> Judged:
    dry = site.run("start-vm", "web", "--dry-run")
    ran = site.run("start-vm", "web")
    wrong = [] if ran.status else judge_running(site, "web")
    if (dry.status == 0) != (ran.status == 0):
        wrong.append(f"start-vm --dry-run exits with {dry.status}, and start-vm with {ran.status}: {_message(ran)}")
    return ran, wrong + (follow(site, ran) if ran.status else [])


def _set_vm(site: Site, cell: Cell) -> Judged:
    ran, wrong = _main(site, "set-vm", "web", "--profile", cell.kind.other)
    record = truth_of(site).record("web")
    if not ran.status and (record is None or [v.profile for v in record.vgpus] != [cell.kind.other]):
        wrong.append(f"set-vm worked, and the record names {record and record.vgpus}")
    return ran, wrong


def _doctor(site: Site, cell: Cell) -> Judged:
    first = site.run("doctor")
    wrong = _blind(site, first, cell)
    if cell.change.name == "nothing" and first.data and first.data["verdict"] != "ok":
        wrong.append(f"doctor finds fault with a host that did not change: {_bad_checks(first)}")
    pasted: dict[str, list[Ran]] = {}
    for check in _bad_checks(first):
        pasted[check["id"]] = [site.run(*words) for words in commands_in(check["fix"])]
        for ran in pasted[check["id"]]:
            wrong += refused(first, ran)
    later = {check["id"]: check for check in _bad_checks(site.run("doctor"))}
    for check in _bad_checks(first):
        fixes = [ran for ran in pasted[check["id"]] if not is_reading(ran.words)]
        worked = [ran.line for ran in fixes if not ran.status]
        if worked and len(worked) == len(fixes) and later.get(check["id"]) == check:
            wrong.append(f"doctor {check['id']}: {'; '.join(worked)} worked, and it says the same: {check['evidence']}")
    return first, wrong


def _bad_checks(ran: Ran) -> list[dict[str, Any]]:
    checks = (ran.data or {}).get("checks", [])
    return [check for check in checks if check["verdict"] not in ("ok", "not-applicable")]


def _blind(site: Site, doctor: Ran, cell: Cell) -> list[str]:
    """Return what is wrong if doctor is silent about a VM that cannot start."""
    if cell.vm == "on":
        return []
    copied = site.copy(site.directory.with_name("start"))
    ran = copied.run("start-vm", "web")
    rmtree(copied.directory)
    if ran.status in (0, 75):
        return []
    text = str(_bad_checks(doctor))
    record = truth_of(site).record("web")
    names = {"web", *(n for v in (record.vgpus if record else ()) for n in (v.gpu, v.function, v.carrier))}
    if any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for name in names):
        return []
    return [f"doctor says nothing of web or its GPU, and start-vm exits with {ran.status}: {_message(ran)}"]


COMMANDS: dict[str, Callable[[Site, Cell], Judged]] = {
    "list": _list,
    "explain": _explain,
    "create-vm": _create,
    "start-vm": _start,
    "set-vm": _set_vm,
    "restore-host": lambda site, cell: _main(site, "restore-host"),
    "reconcile-host": lambda site, cell: _main(site, "reconcile-host"),
    "delete-vm": lambda site, cell: _main(site, "delete-vm", "web"),
    "doctor": _doctor,
}


# ------------------------------------------------------------------------------ rules


def judge_run(ran: Ran, cell: Cell) -> list[str]:
    """Judge one command line by the rules that need nothing else."""
    wrong = [] if ran.status in STATUSES else [f"{ran.line}: exit status {ran.status}"]
    text = f"{ran.out}\n{ran.err}"
    if bug := _BUG.search(text):
        wrong.append(f"{ran.line}: says '{bug[0]}': {_message(ran)}")
    limit = MAX_BOOT_SECONDS if cell.change.can_come(cell.kind) and ran.words[0] == "restore-host" else MAX_SECONDS
    limit = max(limit, MAX_BUSY_SECONDS) if ran.status == 75 else limit
    if ran.waited_seconds > limit:
        wrong.append(f"{ran.line}: waits {ran.waited_seconds:.0f} s: {_message(ran)}")
    if ran.words[0] != "delete-vm":
        advice = [t for t in _advice(ran) if _DELETE.search(t)]
        wrong += [f"{ran.line}: advises to delete a VM that has all it needs: {t}" for t in advice]
    return wrong


def _advice(ran: Ran) -> list[str]:
    warnings = ran.document.get("warnings") or []
    checks = [text for check in _bad_checks(ran) for text in check["evidence"]] if isinstance(ran.data, dict) else []
    return [*texts_of(ran), *map(str, warnings), str(ran.error.get("message") or ""), *checks]


def _message(ran: Ran) -> str:
    return str(ran.error.get("message") or ran.err.strip() or ran.out.strip())[:600]


def judge_running(site: Site, name: str) -> list[str]:
    """Check that a VM that was started runs with each device of its record, and that each of them exists."""
    truth = truth_of(site)
    uuid, record = truth.state.uuids_by_name.get(name), truth.record(name)
    if uuid is None or uuid not in truth.state.running:
        return [f"the start of {name} worked, and it does not run"]
    if truth.power(uuid) != "running":
        return [f"the start of {name} worked, and it is {truth.power(uuid)}"]
    carriers = {v.carrier for v in record.vgpus} if record else set()
    live = set(truth.state.running[uuid].carriers)
    wrong = [f"{name} runs without {carrier} of its record" for carrier in sorted(carriers - live)]
    if not carriers:
        wrong.append(f"{name} runs, and its record names no device")
    return wrong + [
        f"{name} runs with {carrier}, which does not exist" for carrier in sorted(live) if not truth.exists(carrier)
    ]


def judge_lists(site: Site) -> list[str]:
    """Check that list-vgpus, list-vms and show-vm agree with each other and with what is so."""
    vgpus, vms = site.run("list-vgpus"), site.run("list-vms")
    truth, wrong = truth_of(site), []
    for ran in (vgpus, vms):
        wrong += [f"{ran.line} fails: {_message(ran)}"] if ran.status else []
    for row in vgpus.data or []:
        if row["present"] != truth.exists(row["carrier"], row["backend"]):
            wrong.append(f"list-vgpus: {row['carrier']} of {row['vm']}: present {row['present']}, which is not so")
    wrong += [
        f"list-vgpus does not show {carrier}"
        for carrier in sorted(truth.devices() - {row["carrier"] for row in vgpus.data or []})
    ]
    for row in vms.data or []:
        uuid = truth.state.uuids_by_name.get(row["name"], "")
        if row["state"] != truth.power(uuid):
            wrong.append(f"list-vms: {row['name']} is {truth.power(uuid)}, shown as {row['state']}")
        wrong += _same_vgpus(site, row, vgpus)
    return wrong


def _same_vgpus(site: Site, row: dict[str, Any], vgpus: Ran) -> list[str]:
    """Check that three commands show the same vGPUs of a VM."""
    shown = site.run("show-vm", row["name"])
    own = {v["carrier"]: v["present"] for v in row["vgpus"]}
    listed = {v["carrier"]: v["present"] for v in vgpus.data or [] if v["vm"] == row["name"]}
    wrong = []
    if shown.status:
        return [f"show-vm {row['name']} fails: {_message(shown)}"]
    page = {v["carrier"]: v["present"] for v in shown.data["vgpus"]}
    if page != own:
        wrong.append(f"show-vm says {page} of {row['name']}, list-vms {own}")
    if any(carrier in own and own[carrier] != present for carrier, present in listed.items()):
        wrong.append(f"list-vgpus says {listed} of {row['name']}, list-vms {own}")
    return wrong


def settle(site: Site) -> list[str]:
    """Run reconcile-host until it changes nothing, and check that nothing is left without an owner."""
    running_before = set(truth_of(site).state.running)
    wrong = []
    for _ in range(ROUNDS):
        ran = site.run("reconcile-host")
        if not ran.document.get("changed"):
            break
    else:
        wrong.append(f"reconcile-host does not come to rest: {ran.data}")
    wrong += [f"reconcile-host fails: {_message(ran)}"] if ran.status else []
    truth = truth_of(site)
    wrong += [f"reconcile-host stopped {uuid}" for uuid in running_before - set(truth.state.running)]
    with site.opened() as host:
        claims = {path.name for path in host.run_dir.glob("claims/*")}
    named = " ".join(domain.xml for domain in truth.state.domains.values())
    for carrier in sorted(truth.devices() - claims):
        if carrier not in named and not _pci_in(carrier, named):
            wrong.append(f"the device {carrier} is left, and nobody has it")
    return wrong


def _pci_in(carrier: str, text: str) -> bool:
    if ":" not in carrier:
        return False
    domain, bus, rest = carrier.split(":")
    slot, function = rest.split(".")
    return f"domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'" in text


class Before:
    """What unmanaged VMs have, and all disks, before the command."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.truth = truth_of(site)
        self.unmanaged = self._unmanaged(self.truth)
        self.files = set(self.truth.state.files)
        # A clone only names devices of the VM that it was made from.
        named = {name: had for name, had in self.unmanaged.items() if name == "legacy"}
        self.drivers = {a: d for a, d in self.truth.state.drivers.items() if _named(a, named)}
        self.devices = {c for c in self.truth.devices() if _named(c, named)}

    @staticmethod
    def _unmanaged(truth: Truth) -> dict[str, tuple[str, bool]]:
        domains = truth.state.domains.values()
        return {d.name: (d.xml, d.uuid in truth.state.running) for d in domains if d.name in ("legacy", "web-clone")}

    def compare(self, command: str) -> list[str]:
        """Return what of it is gone or different."""
        after = truth_of(self.site)
        wrong = [f"{name} changed" for name, had in self.unmanaged.items() if self._unmanaged(after).get(name) != had]
        wrong += [
            f"{address} of an unmanaged VM was on {driver}, and is on {after.state.drivers.get(address)}"
            for address, driver in self.drivers.items()
            if after.state.drivers.get(address) != driver
        ]
        wrong += [f"{c} of an unmanaged VM is gone" for c in sorted(self.devices - after.devices())]
        gone = self.files - set(after.state.files)
        named = {p for d in after.state.domains.values() for p in parse_disk_sources(d.xml).files}
        bases = {f.base for f in after.state.files.values()}
        wrong += [f"{path} is gone, and a VM uses it" for path in sorted(gone & (named | bases))]
        return wrong + ([f"{path} is gone" for path in sorted(gone)] if command != "delete-vm" else [])


def _named(carrier: str, unmanaged: dict[str, tuple[str, bool]]) -> bool:
    return any(carrier in xml or _pci_in(carrier, xml) for xml, _ in unmanaged.values())


def sampled(count: int, seed: int) -> list[Cell]:
    """Return this many random cells for this seed, those of one host together."""
    cells = list(all_cells())
    drawn = set(Random(seed).sample(range(len(cells)), min(count, len(cells))))
    return [cell for number, cell in enumerate(cells) if number in drawn]
