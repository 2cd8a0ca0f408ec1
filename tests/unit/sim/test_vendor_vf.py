# SPDX-License-Identifier: Apache-2.0
"""Vendor-specific VFIO: every line of the errno table of `current_vgpu_type` and `vgpu_params`."""

from __future__ import annotations

import errno

import pytest

from tests.unit.sim.hosts import PF, MakeHost, pci_device, refused, remove, run_vm, set_type, vf

CURRENT = f"{vf(0)}/nvidia/current_vgpu_type"
PARAMS = f"{vf(0)}/nvidia/vgpu_params"
VF0 = "0000:3b:00.4"


def listed(host, number: int) -> str:
    return host.sysfs.read(f"{vf(number)}/nvidia/creatable_vgpu_types")


def test_lists_what_can_be_made_with_the_drivers_own_columns(make: MakeHost) -> None:
    host = make("a100-40")
    lines = listed(host, 0).splitlines()
    assert lines[:2] == ["ID    : vGPU Name", "468   : GRID A100-4C"]
    assert len(lines) == 7
    assert not any("1-5C" in line for line in lines), "MIG types need MIG"


def test_some_drivers_print_no_header(make: MakeHost) -> None:
    host = make("gpus: [{model: A100, types_header: false}]\n")
    assert listed(host, 0).startswith("468   : ")


@pytest.mark.parametrize("junk", ["abc", "0x1d4", "GRID A100-4C", "", "-1", "4 68", "468\n\n"])
def test_junk_is_einval(make: MakeHost, junk: str) -> None:
    host = make("a100-40")
    refused(errno.EINVAL, lambda: host.sysfs.write(CURRENT, junk))


def test_clearing_a_vf_without_type_is_eperm(make: MakeHost) -> None:
    host = make("a100-40")
    refused(errno.EPERM, lambda: host.sysfs.write(CURRENT, "0"))


@pytest.mark.parametrize("type_id", ["999", "474"])
def test_unknown_and_mig_types_are_eio(make: MakeHost, type_id: str) -> None:
    host = make("a100-40")
    refused(errno.EIO, lambda: host.sysfs.write(CURRENT, type_id))


def test_a_vf_takes_one_type_and_then_lists_none(make: MakeHost) -> None:
    host = make("a100-40")
    set_type(host, 0, 468)
    assert host.sysfs.read(CURRENT) == "468\n"
    assert listed(host, 0) == "ID    : vGPU Name\n"
    refused(errno.EPERM, lambda: set_type(host, 0, 468))
    refused(errno.EPERM, lambda: set_type(host, 0, 469))
    host.sysfs.write(CURRENT, "0\n")
    assert host.sysfs.read(CURRENT) == "0\n"
    assert len(listed(host, 0).splitlines()) == 7


def test_one_size_on_a_card_and_no_more_than_its_maximum(make: MakeHost) -> None:
    host = make("a100-40")
    for number in range(10):
        assert "468 " in listed(host, number)
        set_type(host, number, 468)
    assert listed(host, 10) == "ID    : vGPU Name\n"
    refused(errno.EIO, lambda: set_type(host, 10, 468))
    refused(errno.EIO, lambda: set_type(host, 10, 469))
    host.sysfs.write(f"{vf(3)}/nvidia/current_vgpu_type", "0")
    assert listed(host, 10).splitlines()[1:] == ["468   : GRID A100-4C"]
    refused(errno.EIO, lambda: set_type(host, 10, 469))
    set_type(host, 10, 468)


def test_a_vf_in_use_keeps_type_and_params(make: MakeHost) -> None:
    host = make("a100-40")
    set_type(host, 0, 468)
    vm = run_vm(host, "user", 1, pci_device(VF0, managed=False))
    refused(errno.EPERM, lambda: host.sysfs.write(CURRENT, "0"))
    refused(errno.EPERM, lambda: remove(host, CURRENT, "0"))
    refused(errno.EPERM, lambda: host.sysfs.write(PARAMS, "a=1"))
    host.hypervisor.destroy(vm)
    host.sysfs.write(CURRENT, "0")


def test_params(make: MakeHost) -> None:
    host = make("a100-40")
    refused(errno.ENXIO, lambda: host.sysfs.write(PARAMS, "a=1"))
    set_type(host, 0, 468)
    assert host.sysfs.read(PARAMS) == ""
    host.sysfs.write(PARAMS, "frame_rate_limiter=0, disable_vnc=1\n")
    assert host.sysfs.read(PARAMS) == "frame_rate_limiter=0, disable_vnc=1\n"
    refused(errno.E2BIG, lambda: host.sysfs.write(PARAMS, "x" * 1500))
    host.sysfs.write(PARAMS, " ")
    assert host.sysfs.read(PARAMS) == ""


def test_params_go_with_the_type(make: MakeHost) -> None:
    host = make("a100-40")
    set_type(host, 0, 468)
    host.sysfs.write(PARAMS, "a=1")
    host.sysfs.write(CURRENT, "0")
    set_type(host, 0, 468)
    assert host.sysfs.read(PARAMS) == ""


def test_modes_and_places(make: MakeHost) -> None:
    host = make("a100-40")
    refused(errno.EACCES, lambda: host.sysfs.write(f"{vf(0)}/nvidia/creatable_vgpu_types", "1"))
    refused(errno.ENOENT, lambda: host.sysfs.read(f"{PF}/nvidia/current_vgpu_type"))
    assert host.sysfs.listdir(f"{vf(0)}/vfio-dev") == ("vfio8",)


def test_no_vfio_dev_before_kernel_6_1(make: MakeHost) -> None:
    host = make('kernel: "5.15.0"\ngpus: [{model: A100, backend: vendor-vf}]\n')
    assert "vfio-dev" not in host.sysfs.listdir(vf(0))
