# SPDX-License-Identifier: Apache-2.0
"""GPUs by address, model and glob, from one look at the host."""

from __future__ import annotations

from pathlib import Path

import pytest

import vgpuctl
from vgpuctl.errors import InvalidInput, NotFound


def test_gpus_of_a_model_need_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    host = vgpuctl.open_host("sim:l40s-x4")
    every = [row.name for row in host.select_gpus(everything=True).data]
    assert len(every) == 4
    assert [row.name for row in host.select_gpus("L40S", everything=True).data] == every
    assert [row.name for row in host.select_gpus("l40*").data] == every
    assert [row.name for row in host.select_gpus(every[2], "0000:*").data] == [every[2], every[0], every[1], every[3]]
    with pytest.raises(InvalidInput, match="means 4 GPUs"):
        host.select_gpus("L40S")
    with pytest.raises(NotFound):
        host.select_gpus("0000:ff:00.0")
