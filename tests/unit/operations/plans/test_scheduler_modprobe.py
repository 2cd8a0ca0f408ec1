# SPDX-License-Identifier: Apache-2.0
"""The registry value for a driver, the file that contains it, and the notes about it."""

from __future__ import annotations

import pytest

from tests.values import a100
from vgpuctl.errors import HostCannot
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerLimits, SchedulerPolicy, SchedulerSpec
from vgpuctl.operations.plans.scheduler_modprobe import modprobe_notes, modprobe_steps, next_load_notes, scheduler_word
from vgpuctl.scheduler.modprobe_files import ALL_GPUS_PARAMETER, PER_GPU_PARAMETER, VGPUCTL_FILE, ModprobeFile

GPU = a100()
TWO = SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 2)
FIXED = SchedulerSpec(SchedulerPolicy.FIXED_SHARE)


def file(text, path=VGPUCTL_FILE):
    return (ModprobeFile(path, text),)


@pytest.mark.parametrize(("driver", "word"), [("470.63", 0x00020011), ("550.90.05", 0x00020013)])
def test_the_word_follows_the_drivers_generation(driver, word):
    assert scheduler_word(GPU, TWO, driver, None) == word


def test_an_older_driver_whose_nvml_says_so_is_adaptive():
    limits = SchedulerLimits(frozenset(SchedulerPolicy), True, (0, 0), (0, 0), (0, 0))
    assert scheduler_word(a100(scheduler=GpuScheduler(limits=limits)), TWO, "535.161", None) == 0x00020013


def test_the_bit_for_weights_is_kept_where_present():
    assert scheduler_word(GPU, FIXED, "595.45.04", 0x8) == 0x19
    assert scheduler_word(GPU, FIXED, "550.90.05", 0x8) == 0x11


@pytest.mark.parametrize(("driver", "text"), [(None, "not known"), ("595.45.04", "595")])
def test_a_driver_that_is_not_known_or_cannot_is_refused(driver, text):
    with pytest.raises(HostCannot, match=text):
        scheduler_word(GPU, TWO, driver, None)


def test_a_file_that_says_it_already_is_left_alone():
    (step,) = modprobe_steps(GPU, TWO, (), "550.90.05")
    assert (
        step.describe() == f"write RmPVMRL=0x00020013 (fixed_share, time slice 2 ms) for 0000:3b:00.0 to {VGPUCTL_FILE}"
    )
    assert modprobe_steps(GPU, TWO, file(step.text), "550.90.05") == ()
    (other,) = modprobe_steps(GPU, FIXED, file(step.text), "550.90.05")
    assert other.previous_text == step.text


@pytest.mark.parametrize(
    ("etc", "command"),
    [
        (("initramfs-tools",), "update-initramfs -u -k all"),
        (("dracut.conf.d",), "dracut --force"),
        (("mkinitcpio.conf",), "mkinitcpio -P"),
        (("passwd",), None),
    ],
)
def test_the_initramfs_command_of_the_host_is_named(etc, command):
    notes = modprobe_notes(GPU, (), etc)
    assert "not before" in notes[0]
    assert [command in note for note in notes[1:]] == ([True] if command else [])


def test_a_word_for_every_gpu_and_an_ignored_line_are_noted():
    text = (
        f'options nvidia {ALL_GPUS_PARAMETER}="RmPVMRL=1"\n'
        f'options nvidia {PER_GPU_PARAMETER}="A=1"\noptions nvidia {PER_GPU_PARAMETER}="B=1"\n'
    )
    notes = modprobe_notes(GPU, file(text), ())
    assert f"{VGPUCTL_FILE}:1 sets RmPVMRL for every GPU" in notes[1]
    assert f"{VGPUCTL_FILE}:2 also sets {PER_GPU_PARAMETER}, but has no effect" in notes[2]


def test_a_file_that_differs_from_the_nvml_setting_is_noted():
    (step,) = modprobe_steps(GPU, TWO, (), "550.90.05")
    assert "0x00020013" in next_load_notes(GPU, FIXED, file(step.text), "550.90.05")[0]
    assert next_load_notes(GPU, TWO, file(step.text), "550.90.05") == ()
    assert next_load_notes(GPU, TWO, (), "550.90.05") == ()
