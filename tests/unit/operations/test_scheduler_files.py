# SPDX-License-Identifier: Apache-2.0
"""A scheduler in modprobe's files: which file is edited, what of it stays, and when it takes effect."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from tests.layouts import A100
from tests.schedulers import BEST, EQUAL, FILE, TWO_MS, act, configured_scheduler, restore, runs, small
from vgpuctl.errors import Failed, HostCannot, InvalidInput, Refused
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.operations.queries import show_gpu


def test_without_nvml_a_file_is_written_and_counts_from_the_next_load(tmp_path):
    host = small(tmp_path, nvml="absent")
    done = act(host.ports, TWO_MS)
    assert (done.data.via, done.data.takes_effect) == ("modprobe", "when-loaded")
    assert "not before" in done.notes[0]
    assert (tmp_path / "state" / FILE).read_text().endswith('"pci=0000:3b:00.0;RmPVMRL=0x00020013"\n')
    assert configured_scheduler(host) == TWO_MS
    seen = show_gpu(host.ports, A100).data
    assert (seen.scheduler.running.policy, seen.scheduler.running.source) == (
        "best_effort",
        "kernel log",
    )
    assert (seen.scheduler_at_load, seen.scheduler_next.time_slice_ms) == (None, 2)
    with pytest.raises(Failed, match="NVML cannot set it"):
        restore(host)
    host.sim.reboot()
    host = host.again()
    seen = show_gpu(host.ports, A100).data
    assert seen.scheduler.running.policy == "fixed_share"
    assert seen.scheduler_at_load == seen.scheduler_next == seen.scheduler.configured
    assert not restore(host).changed
    assert not act(host.ports, TWO_MS).changed


def test_the_file_that_sets_the_option_already_is_the_one_that_is_edited(tmp_path):
    host = open_sim_host(tmp_path)
    folder = tmp_path / "state" / "etc" / "modprobe.d"
    folder.mkdir()
    theirs = 'options nvidia NVreg_RegistryDwordsPerDevice="pci=16:00;A=1" # ours\n'
    (folder / "nvidia.conf").write_text(theirs)
    (tmp_path / "state" / "etc" / "initramfs-tools").mkdir()
    done = act(host.ports, TWO_MS, via="modprobe")
    assert "update-initramfs -u -k all" in done.notes[1]
    assert (folder / "nvidia.conf").read_text() == theirs.replace("A=1", "A=1;pci=0000:3b:00.0;RmPVMRL=0x00020013")
    assert [path.name for path in folder.iterdir()] == ["nvidia.conf"]
    assert runs(host) == BEST
    (folder / "other.conf").write_text(theirs)
    with pytest.raises(Refused, match="2 files"):
        act(host.ports, SchedulerSpec(EQUAL), via="modprobe")


def test_an_admins_file_keeps_its_mode_its_link_and_its_ends_of_lines(tmp_path):
    host = open_sim_host(tmp_path)
    etc = tmp_path / "state" / "etc"
    (etc / "modprobe.d").mkdir()
    (etc / "nvidia").mkdir()
    theirs = etc / "nvidia" / "options.conf"
    theirs.write_bytes(b"# ours\r\noptions nvidia NVreg_RegistryDwordsPerDevice=pci=16:00;A=1\r\n")
    theirs.chmod(0o640)
    link = etc / "modprobe.d" / "nvidia.conf"
    link.symlink_to("../nvidia/options.conf")
    act(host.ports, TWO_MS, via="modprobe")
    assert link.is_symlink()
    assert theirs.read_bytes().endswith(b"A=1;pci=0000:3b:00.0;RmPVMRL=0x00020013\r\n")
    assert theirs.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in (etc / "nvidia").iterdir()] == ["options.conf"]


def test_a_file_whose_bytes_could_not_be_written_back_is_left_alone(tmp_path):
    host = open_sim_host(tmp_path)
    folder = tmp_path / "state" / "etc" / "modprobe.d"
    folder.mkdir()
    for name, text in (
        ("nvidia.conf", b'options nvidia NVreg_RegistryDwordsPerDevice="A=1" # f\xfcr alle\n'),
        ("vgpuctl-nvidia.conf", b"# f\xfcr alle\n"),
    ):
        (folder / name).write_bytes(text)
        with pytest.raises(InvalidInput, match=f"{name} is not UTF-8"):
            act(host.ports, TWO_MS, via="modprobe")
        assert (folder / name).read_bytes() == text
        (folder / name).unlink()


def test_nvml_says_when_a_file_asks_for_something_else(tmp_path):
    host = open_sim_host(tmp_path)
    act(host.ports, TWO_MS, via="modprobe")
    assert len(act(host.ports, TWO_MS, via="nvml").notes) == 1
    assert "0x00020013" in act(host.ports, SchedulerSpec(EQUAL)).notes[1]


def test_requested_nvml_that_cannot_do_it_is_refused(tmp_path):
    with pytest.raises(HostCannot, match="NVML cannot set"):
        act(small(tmp_path, nvml="absent").ports, TWO_MS, via="nvml")
