# SPDX-License-Identifier: Apache-2.0
"""docs/reports/outside.md: a row for each command and kind of device, with how its trials ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tests.outside.trial import ACTIONS, Result

FULL = "vendor-vf"
"""The kind of device for which every trial runs, even in a sample."""
PAGE = Path(__file__).parents[2] / "docs" / "reports" / "outside.md"
HEAD = """# Somebody else works on the same VM or GPU

While vgpuctl works on a VM, another program (a person with virsh, autostart, a cluster manager) starts it, destroys it
(`virsh destroy`) or undefines it. Each trial does one of these before one call of a port, on a simulated host. These
rules must hold:

- While a VM is not off nothing of it goes: no disk, record, definition, device or claim. Whoever started it.
- The command ends with a documented exit status. Status 5 says what is left, and what helps.
- `reconcile-host` comes to rest, stops no VM, and leaves nothing without an owner.
- A VM that has a record has the disks that the record names.

Where the VM is being removed, a start asks libvirt's hook first. Reads of sysfs that follow each other count as one
instant.

{total} trials, in {effective} of which the other action was carried out; {wrong} broke a rule.{sample}
Made by `.venv/bin/python -m tests.outside`.

| command | devices | {actions} | exit status 0 | others | broke a rule |
|---|---|{lines}|---|---|---|
"""
TWO_COMMANDS = """
## Another vgpuctl

While one vgpuctl changes a GPU, another one changes or deletes a VM that has a vGPU there. The rules are the same. The
columns of the commands show how often the second one was carried out, before the GPU was claimed or after it was done;
else it was refused.

| command | devices | {actions} | refused | exit status 0 | others | broke a rule |
|---|---|{lines}|---|---|---|---|
"""


def page(results: Sequence[Result], sample: int | None) -> str:
    """Return the page. `sample`: the maximum number of trials of a command that is sampled."""
    wrong, effective = sum(bool(r.wrong) for r in results), sum(r.effective for r in results)
    text = (
        ""
        if sample is None
        else f" At most {sample} of a command are drawn with other devices\nthan {FULL}, and of move-vms."
    )
    head = partial(HEAD.format, total=len(results), effective=effective, wrong=wrong, sample=text)
    two = [r for r in results if r.case.second]
    parts = [_table(head, [r for r in results if not r.case.second], ACTIONS)]
    if two:
        parts.append(_table(TWO_COMMANDS.format, two, tuple(dict.fromkeys(a for r in two for a in r.case.second))))
    return "".join(parts)


def _table(head: Callable[..., str], results: Sequence[Result], actions: tuple[str, ...]) -> str:
    names = list(dict.fromkeys((r.case.command, r.case.kind) for r in results))
    rows = [_row(*name, [r for r in results if (r.case.command, r.case.kind) == name], actions) for name in names]
    return head(actions=" | ".join(actions), lines="|".join(["---"] * len(actions))) + "".join(f"{r}\n" for r in rows)


def _row(command: str, kind: str, results: Sequence[Result], actions: tuple[str, ...]) -> str:
    """Return a command's row: the actions that were carried out, and the exit statuses of all trials."""
    action_counts = Counter(r.instant.action for r in results if r.effective)
    status_counts = Counter(r.status for r in results)
    others = ", ".join(f"{status}: {number}" for status, number in sorted(status_counts.items()) if status) or "none"
    counts = [str(action_counts[action]) for action in actions]
    counts += [str(sum(not r.effective for r in results))] if results[0].case.second else []
    cells = [command, kind, *counts, str(status_counts[0]), others, str(sum(bool(r.wrong) for r in results))]
    return f"| {' | '.join(cells)} |"
