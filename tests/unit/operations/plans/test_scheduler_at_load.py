# SPDX-License-Identifier: Apache-2.0
"""The registry value for a driver, whether the driver was loaded with it, and the line that sets it."""

from __future__ import annotations

import pytest

from tests.values import a100, snapshot
from vgpuctl.errors import HostCannot
from vgpuctl.model.gpu import GpuMode
from vgpuctl.model.vgpu_scheduler import (
    GpuScheduler,
    SchedulerLimits,
    SchedulerPolicy,
    SchedulerSpec,
    SchedulerState,
)
from vgpuctl.operations.plans.schedulers import (
    DriverOptions,
    find_not_loaded,
    next_load_notes,
    scheduler_word,
)
from vgpuctl.scheduler.modprobe_files import PER_GPU_PARAMETER, VGPUCTL_FILE, ModprobeFile
from vgpuctl.value import replace

GPU = a100()
TWO = SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 2)
FIXED = SchedulerSpec(SchedulerPolicy.FIXED_SHARE)


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


def options(text="", loaded=""):
    files = (ModprobeFile(VGPUCTL_FILE, text),) if text else ()
    return DriverOptions("550.90.05", loaded, files)


def test_a_driver_that_was_loaded_with_it_needs_nothing():
    loaded = 'RegistryDwordsPerDevice: "pci=0000:3b:00.0;RmPVMRL=0x00020013"\n'
    assert find_not_loaded(snapshot(GPU), ((GPU, TWO),), options(loaded=loaded)) is None
    assert find_not_loaded(snapshot(GPU), ((GPU, FIXED),), options(loaded=loaded)) is not None
    settable = a100(scheduler=GpuScheduler(setter_versions=("v1",)))
    assert find_not_loaded(snapshot(settable), ((settable, TWO),), options()) is None
    runs = a100(scheduler=GpuScheduler(state=SchedulerState(SchedulerPolicy.FIXED_SHARE)))
    assert find_not_loaded(snapshot(runs), ((runs, FIXED),), options()) is None


def test_the_error_has_the_line_the_file_and_what_to_do_then():
    error = find_not_loaded(snapshot(GPU), ((GPU, TWO),), options(loaded='RegistryDwords: "RmPVMRL=0x1"\n'))
    assert error is not None
    assert (error.status, error.facts["check"]) == (6, "nvml")
    assert str(error) == (
        "0000:3b:00.0 does not run the scheduler fixed_share, time slice 2 ms: NVML cannot set it, and its driver was "
        "loaded with RmPVMRL=0x00000001"
    )
    line = f'options nvidia {PER_GPU_PARAMETER}="pci=0000:3b:00.0;RmPVMRL=0x00020013"'
    assert error.hint == f"add this line to {VGPUCTL_FILE}, then load the driver nvidia again or reboot: {line}"
    assert error.facts["line"] == line
    written = find_not_loaded(snapshot(GPU), ((GPU, TWO),), options(f"{line}\n"))
    assert written is not None
    assert written.hint == "modprobe's files have it: load the driver nvidia again or reboot"


def test_one_line_has_every_gpu_that_host_yaml_configures():
    one = replace(GPU, address="0000:86:00.0", desired_scheduler=FIXED)
    unmanaged = replace(one, address="0000:af:00.0", desired_mode=GpuMode.UNMANAGED)
    unable = replace(one, address="0000:d8:00.0", desired_scheduler=SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 999))
    seen = snapshot(GPU, one, unmanaged, unable)
    error = find_not_loaded(seen, ((GPU, TWO),), options())
    assert error is not None
    value = "pci=0000:3b:00.0;RmPVMRL=0x00020013;pci=0000:86:00.0;RmPVMRL=0x00000011"
    assert error.facts["line"] == f'options nvidia {PER_GPU_PARAMETER}="{value}"'
    both = find_not_loaded(seen, ((GPU, TWO), (one, TWO)), options())
    assert both is not None
    assert [line[:12] for line in str(both).splitlines()] == [GPU.address, one.address]
    assert "pci=0000:86:00.0;RmPVMRL=0x00020013" in both.facts["line"]


def test_a_file_that_differs_from_the_nvml_setting_is_noted():
    text = f'options nvidia {PER_GPU_PARAMETER}="pci=0000:3b:00.0;RmPVMRL=0x00020013"\n'
    assert "0x00020013" in next_load_notes(GPU, FIXED, options(text))[0]
    assert next_load_notes(GPU, TWO, options(text)) == ()
    assert next_load_notes(GPU, TWO, options()) == ()
