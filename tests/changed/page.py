# SPDX-License-Identifier: Apache-2.0
"""docs/reports/changed-hosts.md: a row for each change, with the trials of each backend and how many broke a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.changed.backends import KINDS
from tests.changed.changes import CHANGES
from tests.changed.trial import COMMANDS, Cell, Result

PAGE = Path(__file__).parents[2] / "docs" / "reports" / "changed-hosts.md"
KNOWN = Path(__file__).parent / "known.txt"
KNOWN_HEAD = "# The trials that are known to break a rule. `python -m tests.changed` writes this list.\n"
HEAD = """# Hosts that changed

A VM has its device; then the host changes while no vgpuctl runs: hardware, kernel, driver, libvirt's definitions, other
VMs. Each trial runs one command on such a simulated host, pastes the commands in its hints (for `doctor`: in its
fixes), and then runs `reconcile-host` until it changes nothing. These rules must hold:

- Exit statuses are documented ones, and no text says that vgpuctl has a bug.
- Nothing waits for what cannot come. `restore-host` waits only for VFs and drivers that a boot can still bring.
- What is shown is so: each device that is there or not, each VM's state. The lists agree with each other. The room that
  `list-profiles` shows is room that `create-vm` finds. A start that worked gave the VM each device of its record, and
  one that fails was refused by `start-vm --dry-run` and is explained by `doctor`.
- A command in a hint or a fix is accepted, and does not lead back to the same error and hint.
- Nobody is told to delete a VM that has all it needs.
- Nothing of an unmanaged VM changes, no disk goes, no device is left without an owner.

The host has two GPUs of one model. The VM is off, on, or off and created with `--reserve running`. "Starting" means
that libvirt has bound the other VM's device to vfio-pci and does not yet show the VM as running.

{total} of {all_count} trials ran, and {wrong} broke a rule. Made by `.venv/bin/python -m tests.changed`, which
draws some of them with `--sample N`. A cell shows the trials, and in brackets those that broke a rule.

"""


def known_cells() -> frozenset[str]:
    """Return the names of the trials that are known to break a rule."""
    lines = KNOWN.read_text().splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def page(results: Sequence[Result], all_count: int) -> str:
    """Return the page. `all_count`: how many trials there are, of which some may be left out."""
    wrong = [r for r in results if r.wrong]
    parts = [
        HEAD.format(total=len(results), all_count=all_count, wrong=len(wrong)),
        _table("change", [c.name for c in CHANGES], results, lambda cell: cell.change.name),
        "\n",
        _table("command", list(COMMANDS), results, lambda cell: cell.command),
        "\n## Known to break a rule\n\n" if wrong else "",
        *(f"- {line}\n" for line in _summary(wrong)),
    ]
    return "".join(parts)


def _table(title: str, names: Sequence[str], results: Sequence[Result], key: Callable[[Cell], str]) -> str:
    """Return a table with a row for each of these names and a column for each kind of host."""
    kinds = [kind.name for kind in KINDS]
    lines = [f"| {title} | {' | '.join(kinds)} |", f"|---{'|---' * len(kinds)}|"]
    totals = Counter((key(r.cell), r.cell.kind.name) for r in results)
    wrong = Counter((key(r.cell), r.cell.kind.name) for r in results if r.wrong)
    for name in names:
        cells = [_numbers(totals[name, kind], wrong[name, kind]) for kind in kinds]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _numbers(total: int, wrong: int) -> str:
    return "-" if not total else f"{total} ({wrong})" if wrong else str(total)


def _summary(wrong: Sequence[Result]) -> list[str]:
    """Return a line for each change and command with its backends, and the first rule that was broken."""
    rows: dict[tuple[str, str], list[Result]] = {}
    for result in wrong:
        rows.setdefault((result.cell.change.name, result.cell.command), []).append(result)
    return [
        f"{change}, `{command}` ({', '.join(dict.fromkeys(f'{r.cell.kind.name} {r.cell.vm}' for r in wrong_results))}):"
        f" {wrong_results[0].wrong[0]}"
        for (change, command), wrong_results in rows.items()
    ]
