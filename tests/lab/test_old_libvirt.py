"""libvirt 9.0 from Debian 12 cannot use vendor-specific VFs; vgpuctl refuses before it creates anything."""

from __future__ import annotations

import pytest

from tests.lab.bystanders import bystanders
from tests.lab.domains import pci_hostdev, tiny_domain
from tests.lab.machine import Lab
from tests.lab.old_libvirt import old_libvirt
from tests.lab.vgpuctl_in import call, leftovers, must, put_gpu, use_defaults


@pytest.mark.deadline(600)
def test_libvirt_9_refuses_vendor_vfs_and_create_vm_says_so_before_it_creates_anything(lab: Lab) -> None:
    put_gpu(lab, "vendor-vf")
    use_defaults(lab)
    with bystanders(lab, plain_vfs=False):
        made = must(lab, "create-vm", "vm-1", "--profile", "A100-4C", "--no-start")
        vf = made["vgpus"][0]["carrier"]
        before = leftovers(lab)
        with old_libvirt(lab) as uri:
            assert "9.0.0" in lab.run(f"virsh -c '{uri}' version --daemon").stdout
            status, document = call(lab, "--connect", uri, "create-vm", "vm-2", "--profile", "A100-4C")
            assert (status, document["error"]["facts"].get("check")) == (6, "libvirt-variant"), document
            assert "libvirt 9.0.0" in document["error"]["message"]
            assert "10.0" in document["error"]["hint"]
            checks = {c["id"]: c for c in must(lab, "--connect", uri, "doctor", status=6)["checks"]}
            assert checks["libvirt"]["verdict"] == "fail"
            # The reason for the refusal: libvirt 9.0 itself accepts no device with a driver other than vfio-pci.
            theirs = tiny_domain("by-hand", devices=pci_hostdev(vf, managed=False))
            lab.run(f"virsh -c '{uri}' define /dev/stdin", stdin=theirs)
            output = lab.run(f"virsh -c '{uri}' start by-hand", check=False, timeout=120)
            assert output.returncode != 0
            assert "manually detached" in output.stderr
            lab.run(f"virsh -c '{uri}' undefine by-hand")
        lab.run("systemctl start libvirtd.socket libvirtd.service")
        assert leftovers(lab) == before
