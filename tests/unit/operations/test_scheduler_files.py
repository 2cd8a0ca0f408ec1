# SPDX-License-Identifier: Apache-2.0
"""A scheduler that NVML cannot set: host.yaml gets it, the error has the line, the next load of the driver sets it."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from tests.layouts import A100
from tests.schedulers import BEST, EQUAL, TWO_MS, act, configured_scheduler, paste, restore, runs, small
from tests.unit.operations.test_apply import diff, run
from vgpuctl.errors import Failed, HostCannot
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.operations.queries import show_gpu

LINE = 'options nvidia NVreg_RegistryDwordsPerDevice="pci=0000:3b:00.0;RmPVMRL=0x00020013"'


def test_host_yaml_is_written_and_the_error_has_the_line_for_the_next_load(tmp_path):
    host = small(tmp_path, nvml="absent")
    planned = act(host.ports, TWO_MS, dry_run=True)
    assert planned.notes[-1].endswith(LINE)
    assert configured_scheduler(host) is None
    with pytest.raises(HostCannot, match="NVML cannot set it") as raised:
        act(host.ports, TWO_MS)
    assert (raised.value.status, raised.value.facts["line"]) == (6, LINE)
    assert str(raised.value.hint) == (
        "add this line to /etc/modprobe.d/vgpuctl-nvidia.conf, then load the driver nvidia again or reboot: " + LINE
    )
    assert list(planned.steps) == raised.value.left
    assert configured_scheduler(host) == TWO_MS
    assert not (tmp_path / "state" / "etc" / "modprobe.d").exists()
    with pytest.raises(HostCannot) as again:
        act(host.ports, TWO_MS)
    assert (again.value.left, again.value.hint) == ([], raised.value.hint)
    with pytest.raises(Failed, match="NVML cannot set it"):
        restore(host)
    paste(host, LINE)
    with pytest.raises(HostCannot) as written:
        act(host.ports, TWO_MS)
    assert written.value.hint == "modprobe's files have it: load the driver nvidia again or reboot"
    seen = show_gpu(host.ports, A100).data
    assert (seen.scheduler.running.policy, seen.scheduler.running.source) == ("best_effort", "kernel log")
    assert (seen.scheduler_at_load, seen.scheduler_next.time_slice_ms) == (None, 2)


def test_a_driver_that_was_loaded_with_it_is_accepted(tmp_path):
    host = small(tmp_path, nvml="absent")
    paste(host, LINE)
    host.sim.reboot()
    host = host.again()
    assert act(host.ports, TWO_MS).changed
    assert configured_scheduler(host) == TWO_MS
    assert not act(host.ports, TWO_MS).changed
    assert not restore(host).changed
    seen = show_gpu(host.ports, A100).data
    assert seen.scheduler.running.policy == "fixed_share"
    assert seen.scheduler_at_load == seen.scheduler_next == seen.scheduler.configured


def test_nvml_says_when_a_file_asks_for_something_else(tmp_path):
    host = open_sim_host(tmp_path)
    paste(host, LINE)
    assert len(act(host.ports, TWO_MS).notes) == 1
    assert "0x00020013" in act(host.ports, SchedulerSpec(EQUAL)).notes[1]
    assert runs(host) != BEST


SETS = (f"gpus[{A100}].scheduler.policy=fixed_share", f"gpus[{A100}].scheduler.time_slice_ms=2")


def test_apply_writes_host_yaml_too_and_diff_differs_until_the_driver_was_loaded_with_it(tmp_path):
    host = small(tmp_path, nvml="absent")
    planned = run(host.ports, *SETS, dry_run=True)
    assert planned.warnings[-1].endswith(LINE)
    assert configured_scheduler(host) is None
    with pytest.raises(HostCannot, match="NVML cannot set it") as raised:
        run(host.ports, *SETS)
    assert str(raised.value.hint).endswith(LINE)
    assert raised.value.left == list(planned.steps)
    assert configured_scheduler(host) == TWO_MS
    differs = diff(host.ports)
    assert differs.changed
    assert differs.warnings[-1].endswith(LINE)
    with pytest.raises(HostCannot) as again:
        run(host.ports)
    assert again.value.left == []
    paste(host, LINE)
    host.sim.reboot()
    host = host.again()
    assert not diff(host.ports).changed
    assert not run(host.ports).changed


def test_apply_over_a_host_yaml_that_cannot_be_read_says_the_same(tmp_path):
    host = small(tmp_path, nvml="absent")
    host.ports.host_file.replace("version: 1\ngpu: {}\n", None)
    text = f'version: 1\ngpus: {{"{A100}": {{scheduler: {{policy: fixed_share, time_slice_ms: 2}}}}}}\n'
    with pytest.raises(HostCannot, match="NVML cannot set it") as raised:
        run(host.ports, file=text)
    assert any("host.yaml" in line for line in raised.value.left)
    assert configured_scheduler(host) == TWO_MS


def test_one_line_has_all_gpus_of_host_yaml(tmp_path):
    gpus = ", ".join(f'{{address: "{address}", model: A100}}' for address in (A100, "0000:86:00.0"))
    host = open_sim_host(tmp_path, text=f"version: 1\nnvidia: {{driver: 550.90.05, nvml: absent}}\ngpus: [{gpus}]\n")
    for address in (A100, "0000:86:00.0"):
        with pytest.raises(HostCannot) as raised:
            act(host.ports, TWO_MS, gpu=address)
    line = raised.value.facts["line"]
    assert line == LINE[:-1] + ';pci=0000:86:00.0;RmPVMRL=0x00020013"'
