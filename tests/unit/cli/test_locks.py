# SPDX-License-Identifier: Apache-2.0
"""Locks and directories that something else has: each command ends after --wait, and names what is in the way."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run


@pytest.fixture
def run(sim: Run, tmp_path: Path) -> Path:
    """Return the run directory of a host on which `two` is off."""
    assert sim("create-vm two --profile A100-4C --no-start").status == 0
    return tmp_path / "state/vgpuctl/a100-40/run"


@pytest.fixture
def locked_claims(run: Path) -> Iterator[Path]:
    """Somebody holds the lock of the directory of claims and does not let go."""
    descriptor = os.open(run / "claims", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield run / "claims"
    os.close(descriptor)


@pytest.mark.parametrize(
    "line", ["create-vm one --profile A100-4C", "set-vm two --profile A100-5C", "delete-vm two -y"]
)
def test_a_lock_that_nobody_lets_go_of_ends_with_75_and_names_the_holder(
    sim: Run, locked_claims: Path, line: str
) -> None:
    before = sorted(os.listdir(locked_claims))
    ran = sim(f"--wait 0 --json {line}")
    assert ran.status == 75
    error = ran.document["error"]
    assert (error["code"], error["facts"]["pid"]) == ("locked", os.getpid())
    assert str(locked_claims) in error["message"]
    assert sorted(os.listdir(locked_claims)) == before
    assert [vm["name"] for vm in sim("--json list-vms").document["data"]] == ["two"]


@pytest.mark.parametrize("name", ["operations", "claims", "lock"])
def test_a_dangling_link_in_place_of_a_file_of_ours_is_refused_by_name(sim: Run, tmp_path: Path, name: str) -> None:
    assert sim("list-gpus").status == 0
    path = tmp_path / "state/vgpuctl/a100-40/run" / name
    path.symlink_to("/nowhere")
    ran = sim("--json create-vm one --profile A100-4C")
    assert (ran.status, str(path) in ran.document["error"]["message"]) == (1 if name == "claims" else 6, True)
    assert os.readlink(path) == "/nowhere"
    path.unlink()
    assert sim("create-vm one --profile A100-4C").status == 0
