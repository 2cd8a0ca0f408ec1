# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups and BARs."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import finding_text, run_check
from tests.values import a100, changed, snapshot, t4
from vgpuctl.doctor.check import FileContent, Verdict
from vgpuctl.model.gpu import Backend, IommuGroupMember

RESOURCE = "/sys/bus/pci/devices/0000:3b:00.0/resource"
NONE = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
SMALL = "0x00000000d0000000 0x00000000d0ffffff 0x0000000000040200\n"
LARGE = "0x0000380000000000 0x0000380fffffffff 0x000000000014220c\n"
UNSET = "0x0000000000000000 0x0000000fffffffff 0x000000002014220c\n"
EMPTY_ROM = "0x0000000000000000 0x000000000007ffff 0x0000000020046200\n"


def test_each_vf_has_its_group():
    assert run_check("iommu-groups", snapshot(a100(), t4())).verdict is Verdict.OK


def test_vfs_that_share_a_group_fail():
    together = changed(changed(a100(), 0, iommu_group=40), 1, iommu_group=40)
    result = run_check("iommu-groups", snapshot(together))
    assert result.verdict is Verdict.FAIL
    assert "group 40: 0000:3b:00.4, 0000:3b:00.5" in finding_text(result)


@pytest.mark.parametrize(
    ("member", "verdict"),
    [
        (IommuGroupMember("0000:3c:00.0", "e1000e", same_slot=False), Verdict.WARN),
        (IommuGroupMember("0000:3c:00.0", "vfio-pci", same_slot=False), Verdict.OK),
        (IommuGroupMember("0000:5e:00.1", "snd_hda_intel", same_slot=True), Verdict.OK),
    ],
)
def test_another_device_in_the_group_is_named(member, verdict):
    gpu = t4(backend=Backend.PASSTHROUGH, iommu_group=3, group_members=(member,))
    result = run_check("iommu-groups", snapshot(gpu))
    assert result.verdict is verdict
    assert (member.address in finding_text(result)) is (verdict is Verdict.WARN)


def test_without_an_iommu_there_is_no_group():
    bare = a100(vfs=0)
    assert run_check("iommu-groups", snapshot(bare)).verdict is Verdict.NOT_APPLICABLE


def test_bars_with_addresses_are_ok_and_a_rom_does_not_matter():
    text = SMALL + LARGE + NONE * 4 + EMPTY_ROM + LARGE
    assert run_check("bars", snapshot(a100()), files={RESOURCE: text}).verdict is Verdict.OK


@pytest.mark.parametrize(
    ("text", "name"), [(SMALL + UNSET, "BAR 1"), (SMALL + LARGE + NONE * 4 + EMPTY_ROM + UNSET, "VF BAR 0")]
)
def test_a_bar_without_an_address_fails_with_its_size(text, name):
    result = run_check("bars", snapshot(a100()), files={RESOURCE: text})
    assert result.verdict is Verdict.FAIL
    assert f"{RESOURCE}: {name} of 0000:3b:00.0 has no address (size 64 GiB)" in result.evidence
    assert "Above 4G" in (result.fix or "")


def test_resources_that_are_not_there_are_unknown():
    assert run_check("bars", snapshot(a100())).verdict is Verdict.UNKNOWN
    closed = FileContent(problem=f"{RESOURCE}: Permission denied")
    assert run_check("bars", snapshot(a100()), files={RESOURCE: closed}).evidence == (closed.problem,)
    assert run_check("bars", snapshot()).verdict is Verdict.NOT_APPLICABLE
