# SPDX-License-Identifier: Apache-2.0
"""docs/explanation/systems.md: a row for each system that sites ask about, and each command on it runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.kubernetes_objects import check_manifests
from tests.unit.test_documents import Walk

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/explanation/systems.md"
DATA = ROOT / "tests/data/systems"
SYSTEMS = {
    "PCIe passthrough", "API remoting", "NVIDIA vGPU", "AMD MxGPU", "MIG", "time slicing", "MPS", "AntMan", "TGS",
    "vCUDA", "cGPU", "NVIDIA's device plugin", "4paradigm's", "HAMi", "qGPU", "OrionX", "XenServer", "VMware ESXi",
    "T9k", "nvidia-smi", "gpustat", "Prometheus", "Grafana", "DCGM-exporter", "Cambricon", "Moore Threads", "Biren",
    "MetaX", "Hygon", "Ascend",
}  # fmt: skip
_COMMAND = re.compile(r"`(vgpuctl [^`]+)`(?: \(exit status (\d+)[^)]*\))?")


def rows() -> dict[str, list[str]]:
    """Return the cells of each row, by its system."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row for row in cells if row[0] != "system"}


def commands() -> list[tuple[str, str]]:
    """Return each command of the page, with the exit status that it says."""
    return [(command, status or "0") for command, status in _COMMAND.findall(PAGE.read_text(encoding="utf-8"))]


def test_every_system_has_a_row_with_a_command() -> None:
    assert set(rows()) == SYSTEMS
    assert all(len(row) == 5 and all(row) and _COMMAND.search(row[3]) for row in rows().values())


@pytest.mark.slow
@pytest.mark.parametrize(("command", "status"), commands(), ids=lambda word: word.removeprefix("vgpuctl --host "))
def test_the_command_runs(tmp_path: Path, command: str, status: str) -> None:
    assert "--host sim:" in command
    for file in DATA.iterdir():
        shutil.copy(file, tmp_path)
    Walk(tmp_path).run(command if status == "0" else f"{command}  # exit {status}")


@pytest.mark.parametrize("file", sorted(DATA.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_manifests_are_of_kubernetes_and_on_the_page(file: Path) -> None:
    check_manifests(file.read_text(encoding="utf-8"))
    assert any(file.name in command for command, _ in commands()), f"{file.name} is used by no command"
