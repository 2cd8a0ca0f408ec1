"""Kills vgpuctl many times in the lab and writes a table of the results: `python -m tests.lab kills --count 200`.

The kills come in rounds. Each round uses a fresh snapshot, its own seed, and the GPU in the next form. If the emulated
host itself dies, its round does not count; the page reports how often that happened.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.lab.cache import say
from tests.lab.errors import LabDied
from tests.lab.killing import OPERATIONS
from tests.lab.machine import Lab
from tests.lab.nvidia_host import put_nvml, put_sriov_manage
from tests.lab.session import CHECKOUT, Keeper
from tests.lab.vgpuctl_in import put_gpu, use_defaults

TABLE = CHECKOUT / "docs" / "reports" / "kills.md"
FORMS = ("mdev-vf", "vendor-vf", "mdev-pf")
ROUND = 2 * len(OPERATIONS)
"""The number of kills in one round: each operation twice."""

SECONDS_EACH = 120.0
"""At most so long, on a machine that has other work too."""
COMMAND = "cd /opt/vgpuctl/src && PYTHONPATH=/opt/vgpuctl/src:/opt/vgpuctl/lib python3 -m tests.lab.killing {} {} {}"
HEAD = """# Kills

`kill -9` of vgpuctl at random instants in the lab (a real kernel, libvirt and QEMU in an emulated host), each followed
by `reconcile` and a look at devices, claims, domains and disks: {total} kills with {rounds} seeds, on the GPU in the
forms {forms}. VMs are off but where it says otherwise. The emulated host itself died {deaths} times; those rounds are
not counted.

Made by `.venv/bin/python -m tests.lab kills --count N` on {date}, {machine}.

| operation | kills | instants, seconds | left something to mend | what reconcile found | left over |
|---|---|---|---|---|---|
"""
TAIL = """
Instants are counted from the moment at which the command wrote its operation's file, just before its first change: what
comes before that only reads. Seeds: {seeds}.
"""


@dataclass(frozen=True)
class Kill:
    """One kill: its time in seconds, what reconcile found afterwards, and what reconcile left."""

    operation: str
    killed: bool
    seconds: float
    findings: list[str]
    left: list[str]
    form: str
    seed: int


def kill_in(lab: Lab, form: str, seed: int, count: int) -> list[Kill]:
    """Run `count` kills on a clean lab with its GPU in this form."""
    put_gpu(lab, form)
    put_nvml(lab)
    put_sriov_manage(lab)
    lab.run("modprobe igb")
    use_defaults(lab)
    result = lab.run(COMMAND.format(seed, count, form), check=False, timeout=60 + SECONDS_EACH * count)
    kills = [Kill(**json.loads(line), form=form, seed=seed) for line in result.stdout.splitlines()]
    if result.returncode:
        raise AssertionError(f"seed {seed}, {form}, after {len(kills)} kills: {result.stdout[-500:]}{result.stderr}")
    return kills


def kill_many(count: int, seconds: float, results: Path | None) -> int:
    """Kill until there are `count` kills or the time is over, write the table, and return the exit status."""
    deaths: list[str] = []
    keeper = Keeper("normal", deaths)
    kills = _load(results)
    until = time.monotonic() + seconds
    try:
        while (missing := min(ROUND, count - len(kills))) > 0 and time.monotonic() < until:
            form = FORMS[len(kills) // ROUND % len(FORMS)]  # also where earlier results go on
            seed = int.from_bytes(os.urandom(4), "big")
            try:
                new = kill_in(keeper.clean(), form, seed, missing)
            except LabDied as error:
                deaths.append(str(error))
                continue
            kills += new
            _append(results, new)
            say(f"{len(kills)} kills, {sum(bool(k.left) for k in kills)} left something over")
    finally:
        keeper.stop()
        if kills:  # also after an interrupt
            TABLE.write_text(table(kills, len(deaths)))
            say(f"{TABLE}: {len(kills)} kills")
    return int(any(k.left for k in kills) or not kills)


def _load(results: Path | None) -> list[Kill]:
    if results is None or not results.exists():
        return []
    return [Kill(**json.loads(line)) for line in results.read_text().splitlines()]


def _append(results: Path | None, kills: Iterable[Kill]) -> None:
    if results is not None:
        with results.open("a") as file:
            file.writelines(f"{json.dumps(asdict(kill))}\n" for kill in kills)


def table(kills: list[Kill], deaths: int) -> str:
    """Return the page: a table with one row for each operation and one row for all of them."""
    seeds = list(dict.fromkeys(kill.seed for kill in kills))
    forms = ", ".join(sorted({kill.form for kill in kills}))
    head = HEAD.format(
        total=len(kills),
        rounds=len(seeds),
        forms=forms,
        deaths=deaths,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machine=f"{os.cpu_count()} CPUs ({platform.machine()}), the host emulated without KVM",
    )
    operations = list(dict.fromkeys(kill.operation for kill in sorted(kills, key=lambda k: k.operation)))
    rows = [row(name, [k for k in kills if k.operation == name]) for name in operations]
    return head + "\n".join([*rows, row("**all**", kills)]) + "\n" + TAIL.format(seeds=", ".join(map(str, seeds)))


def row(name: str, kills: list[Kill]) -> str:
    """Return one row of the table."""
    seconds = [kill.seconds for kill in kills]
    counts = Counter(kind for kill in kills for kind in kill.findings)
    kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(counts.items())) or "nothing"
    with_findings, left = sum(bool(kill.findings) for kill in kills), sum(len(kill.left) for kill in kills)
    return f"| {name} | {len(kills)} | {min(seconds):.2f} to {max(seconds):.2f} | {with_findings} | {kinds} | {left} |"
