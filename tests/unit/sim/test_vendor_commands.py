# SPDX-License-Identifier: Apache-2.0
"""sriov-manage of a simulated host: all VFs or none, and only while nobody uses the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import create, open_sim_host, request, stop
from vgpuctl.model.port_values import CommandResult

A16, A100, FLEX = "0000:17:00.0", "0000:3b:00.0", "0000:86:00.0"


def manage(host, flag, address) -> CommandResult:
    done: CommandResult = host.sim.vendor.sriov_manage(flag, address, deadline_seconds=1)
    return done


def vfs(host, address) -> str:
    text: str = host.ports.sysfs.read(f"/sys/bus/pci/devices/{address}/sriov_numvfs")
    return text.strip()


def test_it_turns_all_on_twice_and_off(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "mixed")
    for flag, number in (("-e", "16"), ("-e", "16"), ("-d", "0")):
        assert manage(host, flag, A16).status == 0
        assert vfs(host, A16) == number


def test_a_gpu_in_use_is_refused(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "mixed")
    create(host.ports, request("A100-4C", gpu=A100, name="vm"))
    done = manage(host, "-d", A100)
    assert (done.status, done.text) == (1, f"Cannot obtain unbindLock for {A100}\n")
    assert vfs(host, A100) == "16"
    stop(host.ports, "vm")
    assert manage(host, "-d", A100).status == 0


@pytest.mark.parametrize(
    ("flag", "address"), [("-x", A16), ("-e", FLEX), ("-e", "0000:99:00.0"), ("-e", "0000:5e:00.0")]
)
def test_unknown_arguments_fail(tmp_path: Path, flag: str, address: str) -> None:
    done = manage(open_sim_host(tmp_path, "mixed"), flag, address)
    assert done.status == 1
    assert done.text


def test_a_host_without_vgpu_drivers_has_no_such_command(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text="version: 1\ntitle: t\ngpus: [{model: Flex 170}]\n")
    with pytest.raises(FileNotFoundError):
        manage(host, "-e", FLEX)


def test_a_fault_makes_it_fail(tmp_path: Path) -> None:
    text = f"""version: 1
title: t
gpus: [{{model: A16, address: "{A16}", vfs: {{enabled: 0}}}}]
faults: [{{on: sriov-manage, match: "*"}}]
"""
    assert manage(open_sim_host(tmp_path, text=text), "-e", A16).status == 1


def reset(text: str, tmp_path: Path) -> CommandResult:
    host = open_sim_host(tmp_path, text=f"version: 1\ntitle: t\n{text}")
    done: CommandResult = host.sim.vendor.reset_gpu(A100, deadline_seconds=1)
    return done


def test_a_reset_applies_a_pending_mode(tmp_path: Path) -> None:
    text = f"""version: 1
title: t
gpus: [{{model: A100, address: "{A100}", vfs: {{enabled: 0}}}}]
faults: [{{on: nvml-set-mig, kind: pending}}]
"""
    host = open_sim_host(tmp_path, text=text)
    host.sim.nvml.set_mig(A100, enabled=True)
    done = host.sim.vendor.reset_gpu(A100, deadline_seconds=1)
    assert (done.status, done.text) == (0, "GPU 00000000:3B:00.0 was successfully reset.\nAll done.\n")
    seen = host.sim.nvml.gpu(A100).mig
    assert (seen.enabled, seen.pending_enabled) == (True, True)


@pytest.mark.parametrize("why", ["", "vfs: {enabled: 0}, held_by: nv-hostengine"])
def test_a_gpu_with_vfs_or_a_client_is_not_reset(tmp_path: Path, why: str) -> None:
    done = reset(f'gpus: [{{model: A100, address: "{A100}", {why}}}]\n', tmp_path)
    assert done.status == 19
    assert "GPU 00000000:3B:00.0: In use by another client" in done.text


def test_a_client_keeps_the_vfs_as_they_are(tmp_path: Path) -> None:
    text = f'version: 1\ntitle: t\ngpus: [{{model: A100, address: "{A100}", held_by: dcgm}}]\n'
    done = manage(open_sim_host(tmp_path, text=text), "-d", A100)
    assert (done.status, done.text) == (1, f"Cannot obtain unbindLock for {A100}\n")


def test_other_gpus_are_not_reset(tmp_path: Path) -> None:
    assert (
        reset(f'gpus: [{{model: A16, address: "{A16}"}}, {{model: Flex 170, address: "{A100}"}}]\n', tmp_path).status
        == 6
    )


def test_without_nvidias_driver_there_is_no_nvidia_smi(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        reset(f'gpus: [{{model: A100, address: "{A100}", driver: none}}]\n', tmp_path)


def test_a_reset_that_wedges_a_real_host_is_a_bug_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="wedges"):
        reset(f'kernel: 7.0.0-14\ngpus: [{{model: H100, address: "{A100}", vfs: {{enabled: 0}}}}]\n', tmp_path)


def test_a_fault_makes_the_reset_fail(tmp_path: Path) -> None:
    text = (
        f'gpus: [{{model: A100, address: "{A100}", vfs: {{enabled: 0}}}}]\nfaults: [{{on: reset-gpu, message: no}}]\n'
    )
    assert reset(text, tmp_path) == CommandResult(255, "no\n")
