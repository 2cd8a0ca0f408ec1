# SPDX-License-Identifier: Apache-2.0
"""docs/reports/moves.md: for each kind of move how many points were tried, and where the VM was in the end."""

# ruff: noqa: E501 - lines of a page

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.moves.meanwhile import Met
from tests.moves.trial import Result

PAGE = Path(__file__).parents[2] / "docs" / "reports" / "moves.md"
HEAD = """# Moves between two hosts that are interrupted

A VM with a vGPU, two disks and a seed moves between two simulated hosts ([what a crash leaves](../developers/crashes.md)). In each trial
one call of a port of one of the hosts fails (not done, for good, or done and its answer lost), or the process that drives
the move is killed in it (`SIGKILL`: before the call, after it, while memory or a disk is sent). Then others come:
`end-migration`, or the same `migrate-vm` again, before it `reconcile-host` on the source, on the target, or on both in
either order. At every look these must hold:

- The VM runs on one host at most.
- While it is on, it has its devices, claims and disks. A disk with what its guest wrote is somewhere.
- No device is without a claim. No file is deleted that both hosts have.

In the end, it is on one host, with its disks, and moves once more; the other host is as it was before it had the VM. A
claim of a VM that libvirt does not know any more is left to `reconcile-host`.

Made by `.venv/bin/python -m tests.moves` on {date}, {machine}; hosts and libvirt are simulated. {sample}

| move | calls that fail | kills | trials | in the end on the source, runs | off | on the target, runs | off | leaks | runs on both | broke a rule |
|---|---|---|---|---|---|---|---|---|---|---|
"""
SECOND = """
A VM that is off in the end was off before, or was shut down for its move, which then was killed: nobody knows any more
that it ran. `vgpuctl start-vm` starts it.

## Another program meanwhile

Before one call of a port of the move another program or person acts on one of the hosts: with virsh (start, destroy,
undefine, resume), with another vgpuctl (start-vm, stop-vm, delete-vm, set-vm, reconcile-host, migrate-vm to the same host or
to a third one, end-migration, also with a host that has no part in the move), by a boot of the host, or since libvirt does
not answer for the rest of the move. Afterwards `end-migration` and `reconcile-host` run in either order. Where `end-migration`
says that no host can know where the VM goes on, a person says it, who has looked at both. The rules are the same.

| what | trials | was carried out | exit status 0 | others | on the source, runs | off | on the target, runs | off | gone | runs on both | broke a rule |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""
TAIL = """
Gone: it was deleted or undefined, as was asked, or moved to the third host. `virsh resume` is tried where neither host runs
the VM: libvirt resumes none that is still coming.
"""


def page(failed: Sequence[Result], met: Sequence[Met], *, date: str, machine: str, sample: str) -> str:
    """Return the page."""
    text = HEAD.format(date=date, machine=machine, sample=sample)
    kinds = list(dict.fromkeys(r.kind for r in failed))
    rows = [_failed_row(kind, [r for r in failed if r.kind == kind]) for kind in kinds]
    rows.append(_failed_row("**all**", failed))
    deeds = list(dict.fromkeys(r.instant.deed for r in met))
    second = [_met_row(deed, [r for r in met if r.instant.deed == deed]) for deed in deeds]
    second.append(_met_row("**all**", met))
    return f"{text}{''.join(rows)}{SECOND}{''.join(second)}{TAIL}"


def _failed_row(name: str, results: Sequence[Result]) -> str:
    points = {(r.kind, r.what, r.how) for r in results}
    kills = sum(how.startswith("killed") for _, _, how in points)
    ends = Counter((r.owner, r.state) for r in results)
    cells = [name, len(points) - kills, kills, len(results)]
    cells += [ends[side, state] for side in ("source", "target") for state in ("runs", "off")]
    return _row([*cells, _count(results, "left on"), _count(results, "runs on both"), _count(results, "")])


def _met_row(name: str, results: Sequence[Met]) -> str:
    ends, statuses = Counter((r.owner, r.state) for r in results), Counter(r.status for r in results)
    others = ", ".join(f"{status}: {n}" for status, n in sorted(statuses.items()) if status) or "none"
    cells = [name, len(results), sum(r.effective for r in results), statuses[0], others]
    cells += [ends[side, state] for side in ("source", "target") for state in ("runs", "off")]
    cells += [sum(n for (side, _), n in ends.items() if side == "gone")]
    return _row([*cells, _count(results, "runs on both"), _count(results, "")])


def _count(results: Sequence[Result] | Sequence[Met], text: str) -> int:
    return sum(any(text in line for line in r.wrong) for r in results)


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |\n"
