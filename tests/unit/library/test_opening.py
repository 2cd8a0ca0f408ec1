# SPDX-License-Identifier: Apache-2.0
"""Hosts by name: which one is opened, and which are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import vgpuctl
from vgpuctl.errors import InvalidInput


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "lab-3"}, "there is no such host"),
        ({"connect": "qemu+ssh://lab-3/system"}, "only libvirt on this host"),
        ({"connect": "qemu://lab-3/system"}, "only libvirt on this host"),
        ({"root": "/nowhere"}, "directory /nowhere does not exist"),
        ({"name": "sim:t4", "root": "/tmp"}, "a simulated host has its own"),
        ({"name": "sim:t4", "connect": "qemu:///system"}, "a simulated host has its own"),
    ],
)
def test_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        vgpuctl.open_host(**arguments)


def test_a_captured_tree_can_be_read_and_not_changed(tmp_path: Path) -> None:
    host = vgpuctl.open_host(root=os.fspath(tmp_path))
    assert host.list_gpus().data == ()
    for dry_run in (False, True):
        with pytest.raises(InvalidInput, match="works only on /"):
            host.reconcile_host(dry_run=dry_run)


def test_a_name_without_sim_in_front_is_recognised() -> None:
    with pytest.raises(InvalidInput) as caught:
        vgpuctl.open_host("a100-40")
    assert "sim:a100-40" in str(caught.value.hint)
