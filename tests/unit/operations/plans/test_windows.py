# SPDX-License-Identifier: Apache-2.0
"""Windows 11 is refused before anything is written if it would not install or start."""

from __future__ import annotations

import pytest

from tests.hosts import request
from tests.unit.operations.plans.test_facts import FACTS, check
from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.model.port_values import ImageInfo
from vgpuctl.operations.plans.facts import choose_firmware
from vgpuctl.operations.plans.guest_devices import check_windows
from vgpuctl.value import replace

FIT = replace(FACTS.capabilities, secure_boot=True, tpm=True)
IMAGE = "/srv/images/windows-11.qcow2"


def windows(**changes):
    return request("A100-4C", **{"os": "windows11", "memory_mib": 4096, "vcpus": 2, **changes})


def test_the_least_that_windows_asks_for_passes():
    check_windows(windows(), FIT)
    assert check(windows(), capabilities=FIT) == ()


@pytest.mark.parametrize(
    ("changes", "lacks", "kind", "word", "hint"),
    [
        ({"memory_mib": 4095}, {}, InvalidInput, "4095 MiB", "--memory 4GiB"),
        ({"vcpus": 1}, {}, InvalidInput, "1 virtual CPU", "--vcpus 2"),
        ({}, {"secure_boot": False}, HostCannot, "secure boot", "ovmf"),
        ({}, {"tpm": False}, HostCannot, "TPM 2.0", "swtpm"),
    ],
)
def test_each_lack_is_named_with_a_fix(changes, lacks, kind, word, hint):
    with pytest.raises(kind) as raised:
        check(windows(**changes), capabilities=replace(FIT, **lacks))
    assert word in str(raised.value)
    assert hint in str(raised.value.hint)


def test_other_systems_need_none_of_it():
    check_windows(request("A100-4C", memory_mib=64, vcpus=1), FACTS.capabilities)


@pytest.mark.parametrize("needs", ["uefi", "both", "none", "unknown"])
def test_it_boots_with_uefi(needs):
    facts = replace(FACTS, capabilities=FIT, files={IMAGE: ImageInfo(IMAGE, "qcow2", 1 << 30, needs)})
    assert choose_firmware(windows(image=IMAGE), facts) == "uefi"


def test_an_image_that_boots_only_with_bios_is_refused():
    facts = replace(FACTS, capabilities=FIT, files={IMAGE: ImageInfo(IMAGE, "qcow2", 1 << 30, "bios")})
    with pytest.raises(InvalidInput, match="boots only with BIOS"):
        choose_firmware(windows(image=IMAGE), facts)
