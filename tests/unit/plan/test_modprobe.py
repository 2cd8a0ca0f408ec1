# SPDX-License-Identifier: Apache-2.0
"""The word for a driver, the file that gets it, and what people are told beside it."""

from __future__ import annotations

import pytest

from tests.values import a100
from vgpuctl.errors import HostCannot
from vgpuctl.model.scheduler import GpuScheduler, Policy, SchedulerLimits, SchedulerSpec
from vgpuctl.plan.modprobe import modprobe_notes, modprobe_steps, next_load_notes, word_for
from vgpuctl.scheduler.modprobe import EACH, EVERYWHERE, NEW_FILE, ModprobeFile

GPU = a100()
TWO = SchedulerSpec(Policy.FIXED_SHARE, 2)
FIXED = SchedulerSpec(Policy.FIXED_SHARE)


def file(text, path=NEW_FILE):
    return (ModprobeFile(path, text),)


@pytest.mark.parametrize(("driver", "word"), [("470.63", 0x00020011), ("550.90.05", 0x00020013)])
def test_the_word_follows_the_drivers_generation(driver, word):
    assert word_for(GPU, TWO, driver, None) == word


def test_an_older_driver_whose_nvml_says_so_is_adaptive():
    limits = SchedulerLimits(frozenset(Policy), True, (0, 0), (0, 0), (0, 0))
    assert word_for(a100(scheduler=GpuScheduler(limits=limits)), TWO, "535.161", None) == 0x00020013


def test_the_bit_for_weights_is_kept_where_there_is_one():
    assert word_for(GPU, FIXED, "595.45.04", 0x8) == 0x19
    assert word_for(GPU, FIXED, "550.90.05", 0x8) == 0x11


@pytest.mark.parametrize(("driver", "text"), [(None, "not known"), ("595.45.04", "595")])
def test_a_driver_that_is_not_known_or_cannot_is_refused(driver, text):
    with pytest.raises(HostCannot, match=text):
        word_for(GPU, TWO, driver, None)


def test_a_file_that_says_it_already_is_left_alone():
    (step,) = modprobe_steps(GPU, TWO, (), "550.90.05")
    assert step.describe() == f"write RmPVMRL=0x00020013 (fixed_share, time slice 2 ms) for 0000:3b:00.0 to {NEW_FILE}"
    assert modprobe_steps(GPU, TWO, file(step.text), "550.90.05") == ()
    (other,) = modprobe_steps(GPU, FIXED, file(step.text), "550.90.05")
    assert other.was == step.text


@pytest.mark.parametrize(
    ("etc", "command"),
    [
        (("initramfs-tools",), "update-initramfs -u -k all"),
        (("dracut.conf.d",), "dracut --force"),
        (("mkinitcpio.conf",), "mkinitcpio -P"),
        (("passwd",), None),
    ],
)
def test_the_hosts_own_way_of_making_an_initramfs_is_named(etc, command):
    notes = modprobe_notes(GPU, (), etc)
    assert "not before" in notes[0]
    assert [command in note for note in notes[1:]] == ([True] if command else [])


def test_a_word_for_every_gpu_and_a_line_that_is_lost_are_told():
    text = f'options nvidia {EVERYWHERE}="RmPVMRL=1"\noptions nvidia {EACH}="A=1"\noptions nvidia {EACH}="B=1"\n'
    notes = modprobe_notes(GPU, file(text), ())
    assert f"{NEW_FILE}:1 sets RmPVMRL for every GPU" in notes[1]
    assert f"{NEW_FILE}:2 sets {EACH} too and does not count" in notes[2]


def test_a_file_that_asks_for_something_else_than_nvml_was_told_is_named():
    (step,) = modprobe_steps(GPU, TWO, (), "550.90.05")
    assert "0x00020013" in next_load_notes(GPU, FIXED, file(step.text), "550.90.05")[0]
    assert next_load_notes(GPU, TWO, file(step.text), "550.90.05") == ()
    assert next_load_notes(GPU, TWO, (), "550.90.05") == ()
