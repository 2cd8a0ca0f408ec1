# SPDX-License-Identifier: Apache-2.0
"""Hosts by name: which Host the options open, and which they refuse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpuctl.cli import hosts
from vgpuctl.cli.settings import Settings
from vgpuctl.errors import InvalidInput


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(host="lab-3"), "there is no such host"),
        (Settings(connect="qemu+ssh://lab-3/system"), "only a libvirt on this host"),
        (Settings(connect="qemu://lab-3/system"), "only a libvirt on this host"),
        (Settings(root="/nowhere"), "there is no directory /nowhere"),
        (Settings(host="sim:t4", root="/tmp"), "a simulated host brings its own"),
        (Settings(host="sim:t4", connect="qemu:///system"), "a simulated host brings its own"),
    ],
)
def test_refused(settings: Settings, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        hosts.open_host(settings)


def test_a_captured_tree_can_be_read_and_not_changed(tmp_path: Path) -> None:
    settings = Settings(root=os.fspath(tmp_path))
    assert hosts.open_host(settings).read_only_reason
    with pytest.raises(InvalidInput, match="works on / only"):
        hosts.open_host_to_change(settings)


def test_a_name_without_sim_in_front_is_recognised() -> None:
    with pytest.raises(InvalidInput) as caught:
        hosts.open_host(Settings(host="a100-40"))
    assert "sim:a100-40" in str(caught.value.hint)
