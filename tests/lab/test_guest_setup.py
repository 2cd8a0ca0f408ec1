"""What cloud-init runs in a guest, under a real systemd: L2 is the guest, with stand-ins for NVIDIA's programs."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.guests.roots import STAND_INS
from tests.lab.machine import Lab
from vgpuctl.config.guest_drivers import MAX_BYTES
from vgpuctl.config.guest_rules import parse_guest_sharing
from vgpuctl.domain.guest_setup import setup_script
from vgpuctl.host.driver_discs import DriverDiscFiles
from vgpuctl.host.processes import HostClock
from vgpuctl.model.request import GuestSetup

UNIT = "vgpuctl-mps.service"


def boot(lab: Lab, setup: GuestSetup) -> None:
    """Run the script as cloud-init does."""
    text = setup_script(setup)
    assert text is not None
    script = text.removeprefix("#cloud-boothook\n")
    lab.run("cat >/run/boothook && chmod 700 /run/boothook && /run/boothook", stdin=script)


MPS = GuestSetup(guest_sharing=parse_guest_sharing("mps,threads=25,memory=4GiB"))


def log(lab: Lab) -> list[str]:
    """Return what NVIDIA's programs were told."""
    return lab.read("/run/mps/log").splitlines()


@pytest.mark.quick
@pytest.mark.deadline(120)
def test_systemd_runs_the_daemon_of_mps(lab: Lab) -> None:
    boot(lab, MPS)
    lab.wait_until(f'test -n "$(systemctl show -P ConditionTimestamp {UNIT})"')
    assert lab.run(["systemctl", "show", "-P", "ConditionResult", UNIT]).stdout.strip() == "no"

    for name, text in STAND_INS.items():
        lab.run(f"cat >/usr/bin/{name} && chmod 755 /usr/bin/{name}", stdin=text)
    boot(lab, MPS)
    lab.wait_until(f"systemctl is-active {UNIT}")
    limits = [*(f"set_default_device_pinned_mem_limit {gpu} 4096M" for gpu in (0, 1)),
              "set_default_active_thread_percentage 25"]  # fmt: skip
    start = ["mode EXCLUSIVE_PROCESS", "daemon", *limits, "get_default_active_thread_percentage"]
    assert log(lab) == start
    assert lab.read("/run/mps/daemon").strip() == lab.run(["systemctl", "show", "-P", "MainPID", UNIT]).stdout.strip()
    assert lab.run(["systemctl", "is-enabled", UNIT]).stdout.strip() == "enabled"

    boot(lab, MPS)
    assert log(lab) == start

    lab.run("kill -9 $(cat /run/mps/daemon); rm /run/mps/daemon")
    lab.wait_until(f"test $(systemctl show -P NRestarts {UNIT}) = 1 && systemctl is-active {UNIT}")
    assert log(lab) == [*start, "mode DEFAULT", *start]
    lab.run(["systemctl", "stop", UNIT])
    assert log(lab)[-2:] == ["quit", "mode DEFAULT"]
    assert "refused" not in lab.read("/run/mps/log")


DRIVER = "NVIDIA-Linux-x86_64-580.159.03-grid.run"
INSTALLER = '#!/bin/sh\necho "$*" >>/run/driver-log\n'
STAND_IN = '#!/bin/sh\n[ "${0##*/}" = modinfo ] || echo "${0##*/} $*" >>/run/driver-log\n'


@pytest.mark.quick
@pytest.mark.deadline(120)
def test_systemd_installs_the_driver_from_the_disc(lab: Lab, tmp_path: Path) -> None:
    """The disc is what vgpuctl makes, mounted by the kernel; modprobe and apt-get are stand-ins."""
    (tmp_path / DRIVER).write_text(INSTALLER)
    discs = DriverDiscFiles(tmp_path, HostClock(), of_root=False)
    read = discs.read(str(tmp_path / DRIVER), MAX_BYTES)
    assert read is not None
    discs.write("d.iso", str(tmp_path / DRIVER), read.sha256, MAX_BYTES)
    lab.run("base64 -d >/run/d.iso", stdin=base64.b64encode(Path(discs.path("d.iso")).read_bytes()).decode())
    for name in ("apt-get", "dkms", "modinfo", "modprobe", "update-initramfs"):
        lab.run(f"cat >/usr/local/sbin/{name} && chmod 755 /usr/local/sbin/{name}", stdin=STAND_IN)
    lab.run("losetup --find --read-only /run/d.iso && udevadm settle")
    lab.run("echo 0x10de >/run/vendor; mount --bind /run/vendor $(ls /sys/bus/pci/devices/*/vendor | head -n 1)")

    boot(lab, GuestSetup(guest_driver=f"/srv/{DRIVER}"))
    lab.wait_until("grep -q 'modprobe nvidia' /run/driver-log")
    lab.wait_until("systemctl show -P ActiveState vgpuctl-driver.service | grep -qx inactive")
    lines = lab.read("/run/driver-log").splitlines()
    words = ["apt-get", "apt-get", "apt-get", "--silent", "update-initramfs", "modprobe"]
    assert [line.split()[0] for line in lines] == words
    assert lab.run(["systemctl", "show", "-P", "Result", "vgpuctl-driver.service"]).stdout.strip() == "success"
    assert not lab.run("findmnt /run/vgpuctl-driver || :").stdout

    lab.run(["systemctl", "start", "vgpuctl-driver.service"])
    lab.wait_until("test $(grep -c 'modprobe nvidia' /run/driver-log) = 2")
    assert lab.read("/run/driver-log").splitlines()[len(lines) :] == ["modprobe nvidia"]
