# SPDX-License-Identifier: Apache-2.0
"""The Sysfs port itself: errnos of wrong paths, and the real files below /etc."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.unit.sim.hosts import PF, MakeHost, refused, remove


def test_wrong_paths_have_the_kernels_errno(make: MakeHost) -> None:
    host = make("a100-40")
    refused(errno.ENOENT, lambda: host.sysfs.read("/sys/none"))
    refused(errno.ENOENT, lambda: host.sysfs.listdir("/sys/bus/none/devices"))
    refused(errno.EISDIR, lambda: host.sysfs.read(PF))
    refused(errno.EISDIR, lambda: host.sysfs.write(PF, "1"))
    refused(errno.ENOTDIR, lambda: host.sysfs.listdir(f"{PF}/vendor"))
    refused(errno.ENOTDIR, lambda: host.sysfs.read(f"{PF}/vendor/x"))
    refused(errno.EINVAL, lambda: host.sysfs.readlink(f"{PF}/vendor"))
    refused(errno.EACCES, lambda: host.sysfs.write(f"{PF}/vendor", "1"))
    refused(errno.EACCES, lambda: remove(host, f"{PF}/vendor"))
    refused(errno.EACCES, lambda: host.sysfs.read("/sys/bus/pci/drivers_probe"))


def test_paths_are_followed_as_the_kernel_does(make: MakeHost) -> None:
    host = make("a100-40")
    assert host.sysfs.read(f"{PF}/virtfn0/physfn/virtfn1/../vendor") == "0x8086\n", "the port is above"
    assert host.sysfs.read("/sys//bus/pci/devices/../devices/0000:3b:00.0/vendor") == "0x10de\n"
    assert host.sysfs.listdir("/") == ("dev", "etc", "proc", "sys", "usr")
    assert host.sysfs.listdir("/sys/bus/pci/") == ("devices", "drivers", "drivers_probe")


def test_etc_has_real_files_in_the_state_directory(make: MakeHost, tmp_path: Path) -> None:
    host = make("a100-40")
    refused(errno.ENOENT, lambda: host.sysfs.read("/etc/vgpuctl/host.yaml"))
    refused(errno.ENOENT, lambda: host.sysfs.write("/etc/vgpuctl/host.yaml", "x"))
    refused(errno.ENOENT, lambda: host.sysfs.listdir("/etc/vgpuctl/templates"))
    real = tmp_path / "host.state" / "etc" / "vgpuctl" / "host.yaml"
    real.write_text("version: 1\n")
    assert host.sysfs.read("/etc/vgpuctl/host.yaml") == "version: 1\n"
    host.sysfs.write("/etc/vgpuctl/host.yaml", "version: 1 # mine\n")
    assert real.read_text() == "version: 1 # mine\n"
    assert host.sysfs.listdir("/etc/vgpuctl") == ("host.yaml",)
    assert host.sysfs.listdir("/etc") == ("libvirt", "machine-id", "vgpuctl")
    assert host.sysfs.read("/etc/machine-id") == f"{host.machine_id}\n"


def test_etc_does_not_lead_out(make: MakeHost, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    host = make("a100-40")
    with pytest.raises(OSError, match="No such file"):
        host.sysfs.read("/etc/../../secret")


def test_kept_files_have_real_permissions_and_others_the_kernels(make: MakeHost, tmp_path: Path) -> None:
    host = make("a100-40")
    (tmp_path / "host.state" / "etc" / "vgpuctl" / "host.yaml").touch(mode=0o600)
    assert host.sysfs.permissions("/etc/vgpuctl/host.yaml").mode == 0o600
    assert host.sysfs.permissions("/run/vgpuctl").mode == 0o700
    assert host.sysfs.permissions(PF).mode == 0o755
    refused(errno.ENOENT, lambda: host.sysfs.permissions("/run/vgpuctl/none"))
