# SPDX-License-Identifier: Apache-2.0
"""docs/reports/outside.md: a row for each command and kind of device, with how its trials ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.outside.trial import ACTIONS, Result

FULL = "vendor-vf"
"""The kind of device for which every trial runs, even in a sample."""
PAGE = Path(__file__).parents[2] / "docs" / "reports" / "outside.md"
HEAD = """# Somebody else starts, destroys or undefines the VM

While vgpuctl works on a VM, another program (a person with virsh, autostart, a cluster manager) starts it, destroys it
(`virsh destroy`) or undefines it. Each trial does one of these before one call of a port, on a simulated host. These
rules must hold:

- While a VM is not off nothing of it goes: no disk, record, definition, device or claim. Whoever started it.
- The command ends with a documented exit status. Status 5 says what is left, and what helps.
- `reconcile` comes to rest, stops no VM, and leaves nothing without an owner.
- A VM that has a record has the disks that the record names.

Where the VM is being removed, a start asks libvirt's hook first. Reads of sysfs that follow each other count as one
instant.

{total} trials, in {effective} of which libvirt allowed the action; {wrong} broke a rule.{sample}
Made by `.venv/bin/python -m tests.outside`.

| command | devices | start | destroy | undefine | exit status 0 | others | broke a rule |
|---|---|---|---|---|---|---|---|
"""


def page(results: Sequence[Result], sample: int | None) -> str:
    """Return the page. `sample`: the maximum number of trials of a command that is sampled."""
    names = list(dict.fromkeys((r.case.command, r.case.kind) for r in results))
    rows = [_row(*name, [r for r in results if (r.case.command, r.case.kind) == name]) for name in names]
    wrong, effective = sum(bool(r.wrong) for r in results), sum(r.effective for r in results)
    text = (
        ""
        if sample is None
        else f" At most {sample} of a command are drawn with other devices\nthan {FULL}, and of move-vms."
    )
    return HEAD.format(total=len(results), effective=effective, wrong=wrong, sample=text) + "\n".join(rows) + "\n"


def _row(command: str, kind: str, results: Sequence[Result]) -> str:
    """Return a command's row: the actions that libvirt allowed, and the exit statuses of all trials."""
    action_counts = Counter(r.instant.action for r in results if r.effective)
    status_counts = Counter(r.status for r in results)
    others = ", ".join(f"{status}: {number}" for status, number in sorted(status_counts.items()) if status) or "none"
    counts = " | ".join(str(action_counts[action]) for action in ACTIONS)
    return f"| {command} | {kind} | {counts} | {status_counts[0]} | {others} | {sum(bool(r.wrong) for r in results)} |"
