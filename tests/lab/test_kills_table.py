"""The table in docs/reports/kills.md counts every kill and every leftover, and kills are saved between runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import kills
from tests.lab.kills import Kill

pytestmark = pytest.mark.quick

ONE = Kill("attach", True, 0.5, ["half-attached"], [], "mdev-vf", 7)
TWO = Kill("attach", True, 1.25, [], ["claim x", "device x"], "vendor-vf", 8)
THREE = Kill("set-mode", True, 0.25, ["leaked"], [], "vendor-vf", 8)


def test_each_operation_has_a_row_and_the_last_row_is_the_total() -> None:
    text = kills.table([ONE, TWO, THREE], deaths=2)
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert rows == [
        "| attach | 2 | 0.50 to 1.25 | 1 | half-attached 1 | 2 |",
        "| set-mode | 1 | 0.25 to 0.25 | 1 | leaked 1 | 0 |",
        "| **all** | 3 | 0.25 to 1.25 | 2 | half-attached 1, leaked 1 | 2 |",
    ]
    assert "3 kills with 2 seeds" in text
    assert "forms mdev-vf, vendor-vf" in text.replace("\n", " ")
    assert "died 2 times" in text
    assert "Seeds: 7, 8." in text


def test_kills_are_saved_for_the_next_run(tmp_path: Path) -> None:
    file = tmp_path / "kills"
    assert kills._load(file) == []
    kills._append(file, [ONE])
    kills._append(file, [TWO])
    assert kills._load(file) == [ONE, TWO]
