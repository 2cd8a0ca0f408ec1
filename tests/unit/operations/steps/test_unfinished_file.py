# SPDX-License-Identifier: Apache-2.0
"""Removing half-written files, as a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import failing
from tests.hosts import open_sim_host
from vgpuctl.errors import FileFailed
from vgpuctl.model.vm import ProcessId, UnfinishedFile
from vgpuctl.operations.unowned import RemoveUnfinishedFile


def test_it_is_removed_and_what_cannot_be_is_named(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path)
    path = tmp_path / ".host.yaml.vgpuctl-4194399-1"
    path.write_text("")
    step = RemoveUnfinishedFile(UnfinishedFile(str(path), ProcessId(4194399, 1)))
    assert step.describe() == f"remove {path}"
    with pytest.raises(FileFailed, match=f"{path} cannot be removed") as raised:
        step.perform(failing(host.ports, 1))
    assert raised.value.facts["path"] == str(path)
    step.perform(host.ports)
    step.perform(host.ports)
    assert not path.exists()
