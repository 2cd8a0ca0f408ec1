# SPDX-License-Identifier: Apache-2.0
"""sriov-manage of a simulated host: all VFs or none, and only while nobody uses the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds import create, open_host, stop, wish
from vgpuctl.model.records import CommandResult

A16, A100, FLEX = "0000:17:00.0", "0000:3b:00.0", "0000:86:00.0"


def manage(host, flag, address) -> CommandResult:
    done: CommandResult = host.sim.vendor.sriov_manage(flag, address, deadline_seconds=1)
    return done


def vfs(host, address) -> str:
    text: str = host.world.sysfs.read(f"/sys/bus/pci/devices/{address}/sriov_numvfs")
    return text.strip()


def test_it_turns_all_on_twice_and_off(tmp_path: Path) -> None:
    host = open_host(tmp_path, "mixed")
    for flag, number in (("-e", "16"), ("-e", "16"), ("-d", "0")):
        assert manage(host, flag, A16).status == 0
        assert vfs(host, A16) == number


def test_a_gpu_in_use_is_not_let_go(tmp_path: Path) -> None:
    host = open_host(tmp_path, "mixed")
    create(host.world, wish("A100-4C", gpu=A100, name="vm"))
    done = manage(host, "-d", A100)
    assert (done.status, done.text) == (1, f"Cannot obtain unbindLock for {A100}\n")
    assert vfs(host, A100) == "16"
    stop(host.world, "vm")
    assert manage(host, "-d", A100).status == 0


@pytest.mark.parametrize(
    ("flag", "address"), [("-x", A16), ("-e", FLEX), ("-e", "0000:99:00.0"), ("-e", "0000:5e:00.0")]
)
def test_what_it_does_not_know_it_complains_about(tmp_path: Path, flag: str, address: str) -> None:
    done = manage(open_host(tmp_path, "mixed"), flag, address)
    assert done.status == 1
    assert done.text


def test_a_host_without_vgpu_drivers_has_no_such_command(tmp_path: Path) -> None:
    host = open_host(tmp_path, text="version: 1\ntitle: t\ngpus: [{model: Flex 170}]\n")
    with pytest.raises(FileNotFoundError):
        manage(host, "-e", FLEX)


def test_a_fault_makes_it_fail(tmp_path: Path) -> None:
    text = f"""version: 1
title: t
gpus: [{{model: A16, address: "{A16}", vfs: {{enabled: 0}}}}]
faults: [{{on: sriov-manage, match: "*"}}]
"""
    assert manage(open_host(tmp_path, text=text), "-e", A16).status == 1
