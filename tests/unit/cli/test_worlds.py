# SPDX-License-Identifier: Apache-2.0
"""Hosts by name: which World the options build, and which they refuse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpuctl.cli import worlds
from vgpuctl.cli.settings import Settings
from vgpuctl.errors import InvalidInput


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(host="lab-3"), "there is no such host"),
        (Settings(connect="qemu+ssh://lab-3/system"), "only a libvirt on this host"),
        (Settings(connect="qemu://lab-3/system"), "only a libvirt on this host"),
        (Settings(root="/nowhere"), "there is no directory /nowhere"),
        (Settings(host="sim:t4", root="/tmp"), "a simulated host brings its own"),
        (Settings(host="sim:t4", connect="qemu:///system"), "a simulated host brings its own"),
    ],
)
def test_refused(settings: Settings, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        worlds.open_world(settings)


def test_a_captured_tree_can_be_read_and_not_changed(tmp_path: Path) -> None:
    settings = Settings(root=os.fspath(tmp_path))
    assert worlds.open_world(settings).read_only
    with pytest.raises(InvalidInput, match="works on / only"):
        worlds.open_world_to_change(settings)


def test_a_name_without_sim_in_front_is_recognised() -> None:
    with pytest.raises(InvalidInput) as caught:
        worlds.open_world(Settings(host="a100-40"))
    assert "sim:a100-40" in str(caught.value.hint)
