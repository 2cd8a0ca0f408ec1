# SPDX-License-Identifier: Apache-2.0
"""Which maker a GPU, a type and a driver belong to; a maker of which nothing is known has no special facts."""

from __future__ import annotations

import pytest

from tests.values import a100, t4
from vgpuctl.makers import (
    MAKERS,
    disable_vfs_hint,
    enable_vfs_hint,
    maker_of,
    maker_of_type,
    sets_vfs_at_load,
    usage_source,
    uses_nvml,
    vfs_are_for_vgpus,
)
from vgpuctl.makers.maker import Maker


def test_each_maker_is_found_by_what_is_its_own():
    for maker in MAKERS:
        if maker.vendor_id is not None:
            assert maker_of(a100(vendor_id=maker.vendor_id)) is maker
        if maker.type_prefix is not None:
            assert maker_of_type(f"{maker.type_prefix}1") is maker
    for fact in ("vendor_id", "type_prefix", "vgpu_driver"):
        stated = [getattr(m, fact) for m in MAKERS if getattr(m, fact) is not None]
        assert len(stated) == len(set(stated)), f"two makers have one {fact}"


@pytest.mark.parametrize("vendor", [None, "1a03"])
def test_an_unknown_maker_has_no_special_facts(vendor):
    gpu = t4(vendor_id=vendor, driver="other")
    maker = maker_of(gpu)
    assert type(maker) is type(maker_of_type("other-1")) is Maker
    assert not any((uses_nvml(gpu), vfs_are_for_vgpus(gpu), maker.has_vgpu_params, sets_vfs_at_load(gpu)))
    known = maker.read_type("other-1", "One", "framebuffer=1024M\nmemory size: 6GB\n")
    assert (known.profile, known.framebuffer_mib, known.max_per_gpu, known.pool_units) == ("other-1", None, None, None)
    assert maker.pool_rule == "its types share one pool"


@pytest.mark.parametrize(
    ("vendor", "driver", "on", "off"),
    [
        ("10de", "nvidia", "set-mode 0000:3b:00.0 vgpu", "set-mode 0000:3b:00.0 passthrough"),
        ("10de", "vfio-pci", "set-mode 0000:3b:00.0 sriov", "set-mode 0000:3b:00.0 passthrough"),
        ("8086", "xe", "set-mode 0000:3b:00.0 sriov", "set-mode 0000:3b:00.0 passthrough"),
        ("1002", "gim", "set-mode 0000:3b:00.0 sriov", "set-mode 0000:3b:00.0 sriov --vfs 1"),
    ],
)
def test_the_hints_about_vfs_fit_the_driver(vendor, driver, on, off):
    gpu = a100(vendor_id=vendor, driver=driver)
    assert on in enable_vfs_hint(gpu)
    assert off in disable_vfs_hint(gpu)


@pytest.mark.parametrize(
    ("vendor", "driver", "expected"), [("10de", "nvidia", True), ("10de", "nouveau", False), ("1002", "nvidia", False)]
)
def test_nvml_is_asked_only_for_its_makers_gpus_with_its_driver(vendor, driver, expected):
    assert uses_nvml(a100(vendor_id=vendor, driver=driver)) is expected


@pytest.mark.parametrize(
    ("vendor", "driver", "source"),
    [
        ("10de", "nvidia", "nvml"),
        ("10de", "nouveau", None),
        ("1002", "gim", "amd-smi"),
        ("1002", "amdgpu", "sysfs"),
        ("8086", "xe", "sysfs"),
        ("8086", "vfio-pci", None),
        ("8086", None, None),
        ("8086", "xe-vfio-pci", None),
        ("19e5", "devdrv_device_driver", "npu-smi"),
        ("1a03", "ast", None),
    ],
)
def test_who_reports_the_use_of_a_card(vendor, driver, source):
    assert usage_source(a100(vendor_id=vendor, driver=driver)) == source
