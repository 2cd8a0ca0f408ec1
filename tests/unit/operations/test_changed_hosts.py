# SPDX-License-Identifier: Apache-2.0
"""A sample of the trials on hosts that changed: what is shown is so, hints work, nothing waits, nobody loses a VM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import EVERYTHING
from tests.changed.backends import KINDS
from tests.changed.hints import commands_in
from tests.changed.page import known_cells
from tests.changed.trial import Trials, all_cells, sampled

SEED, COUNT = 14, 200 if EVERYTHING else 80


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_commands_on_a_changed_host_keep_the_rules(tmp_path: Path, kind: str) -> None:
    cells = [cell for cell in sampled(COUNT, SEED) if cell.kind.name == kind]
    trials, known = Trials(tmp_path), known_cells()
    results = [trials.run(cell) for cell in cells]
    assert len(results) >= COUNT / len(KINDS) / 2
    assert {r.cell.name: r.wrong for r in results if r.wrong and r.cell.name not in known} == {}
    assert [r.cell.name for r in results if not r.wrong and r.cell.name in known] == [], "remove these from known.txt"


def test_every_known_trial_exists() -> None:
    assert known_cells() <= {cell.name for cell in all_cells()}


def test_the_commands_of_a_hint_are_found() -> None:
    commands = commands_in(
        "vgpuctl set-mode 0000:3b:00.0 vgpu; if this is intended: vgpuctl set-mode ADDRESS passthrough, or unmanaged;"
        " 'vgpuctl list-gpus --help' shows the usage. vgpuctl list-vms shows it."
        " vgpuctl start-vm 'a b', then vgpuctl explain A100-4C"
    )
    assert list(commands) == [
        ("set-mode", "0000:3b:00.0", "vgpu"),
        ("list-gpus", "--help"),
        ("list-vms",),
        ("start-vm", "a b"),
        ("explain", "A100-4C"),
    ]
