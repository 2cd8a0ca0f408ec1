"""The Debian package on a host with systemd and libvirtd, over an earlier installation and under a running guest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.outside import create_watch_delete
from tests.lab.test_after_boot import INSTALLED
from tests.lab.vgpuctl_in import A100, MEMBERS_MAY, leftovers, must, put_gpu, use_defaults
from tests.packaging import build
from vgpuctl.extras import PACKAGE_PYTHON
from vgpuctl.operations.plans.installation import HOOK_PATH, UNIT_PATH

# The lab has the libraries of vgpuctl in a directory of its own, and not as Debian packages.
LIBRARIES = "printf '/opt/vgpuctl/lib\\n' > /usr/lib/python3/dist-packages/lab.pth"

# The lab's own program comes first in PATH. With this, /usr/bin/vgpuctl is what ada's key starts.
ROOT_ALONE = "chmod 700 /usr/local/bin/vgpuctl"


def packaged(lab: Lab, *words: str, user: str = "root") -> Any:
    """Run the package's program as a user and return its data."""
    result = lab.run(["runuser", "-u", user, "--", "/usr/bin/vgpuctl", "--json", "--yes", *words], timeout=300)
    return json.loads(result.stdout)["data"]


@pytest.mark.deadline(1500)
def test_the_package_takes_over_and_goes_again_under_a_running_guest(lab: Lab, tmp_path: Path) -> None:
    deb = next(path for path in build.build(tmp_path) if path.suffix == ".deb")
    lab.run(INSTALLED)
    put_gpu(lab, "vendor-vf")
    use_defaults(lab, MEMBERS_MAY)
    before = leftovers(lab)
    must(lab, "install-host", "--restart-libvirt")
    made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C")
    number = lab.run("virsh domid vm-1").stdout

    lab.push(tmp_path, "/root/packages")
    lab.run(f"{LIBRARIES}; dpkg --install --force-depends /root/packages/{deb.name}", timeout=400)
    shown = packaged(lab, "show-vm", "vm-1")
    assert (shown["state"], shown["vgpus"]) == ("running", made["vgpus"])
    assert lab.run("virsh domid vm-1").stdout == number
    assert PACKAGE_PYTHON in lab.read(HOOK_PATH)
    assert lab.run(f"ls {UNIT_PATH}", check=False).returncode != 0
    assert packaged(lab, "install-host")["steps"] == []

    packaged(lab, "create-vm", "vm-2", "--profile", "A100-4C", "--reserve", "running", "--no-start")
    lab.run("virsh start vm-2", timeout=200)
    assert A100 in guest_devices(lab, "vm-2")
    lab.run("virsh destroy vm-2")
    packaged(lab, "delete-vm", "vm-2")

    packaged(lab, "install-host", "--agent")
    lab.run("useradd ada && usermod -aG vgpuctl ada")
    made_by_ada = packaged(lab, "create-vm", "vm-3", "--profile", "A100-4C", "--no-start", user="ada")
    assert made_by_ada["account"] == "ada"
    packaged(lab, "delete-vm", "vm-3", user="ada")
    assert "vm-undefined" in [event["type"] for event in packaged(lab, "events", user="ada")]
    lab.run(ROOT_ALONE)
    create_watch_delete(lab, tmp_path, "vm-4")

    lab.run("dpkg --purge vgpuctl", timeout=200)
    assert lab.run("systemctl is-active vgpuctl-agent.socket vgpuctl-agent.service", check=False).returncode != 0
    assert lab.run("ls /etc/libvirt/hooks/qemu.d", check=False).stdout.strip() == ""
    assert lab.run("virsh domid vm-1").stdout == number
    assert must(lab, "show-vm", "vm-1")["vgpus"] == made["vgpus"]
    must(lab, "delete-vm", "vm-1")
    assert leftovers(lab) == before
