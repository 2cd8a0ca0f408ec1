"""Managed save and restore with a vGPU that supports it, and a start that another hook refuses after vgpuctl's hook."""

from __future__ import annotations

import re

import pytest

from tests.lab.bystanders import bystanders
from tests.lab.console import ask_guest, guest_devices
from tests.lab.machine import Lab
from tests.lab.test_after_boot import INSTALLED
from tests.lab.vgpuctl_in import leftovers, must, use_defaults

MTTY_IDS = "4348:3253"
OTHER_HOOK = "/etc/libvirt/hooks/qemu.d/zz-other"
# mtty supports migration, but tracks dirty pages through a kernel feature that Debian disables (CONFIG_IOMMUFD). These
# options make QEMU save the device anyway, without dirty page tracking.
SAVABLE = """<qemu:override><qemu:device alias='ua-vgpuctl-0'><qemu:frontend>
<qemu:property name='enable-migration' type='string' value='on'/>
<qemu:property name='x-device-dirty-page-tracking' type='string' value='off'/>
</qemu:frontend></qemu:device></qemu:override></domain>"""


def make_savable(lab: Lab, name: str) -> None:
    """Redefine the VM with these QEMU options, as an admin would with `virsh edit`."""
    xml = lab.run(f"virsh dumpxml --inactive {name}").stdout
    space = "<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0' "
    lab.run("virsh define /dev/stdin", stdin=xml.replace("<domain ", space, 1).replace("</domain>", SAVABLE))


def guest_boot(lab: Lab, name: str) -> str:
    """Return the boot ID of the guest's kernel. It changes with each boot."""
    return str(
        re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", ask_guest(lab, name, "cat /proc/sys/kernel/random/boot_id"))[-1]
    )


@pytest.mark.deadline(600)
def test_a_saved_vm_keeps_vgpu_and_claim_and_resumes_also_after_a_boot(lab: Lab) -> None:
    lab.run(f"{INSTALLED}\nmodprobe mtty")
    use_defaults(lab)
    must(lab, "install-host", "--restart-libvirt")
    with bystanders(lab):
        before = leftovers(lab)
        made = must(lab, "create-vm", "vm-1", "--profile", "mtty-2", "--no-start")
        carrier = made["vgpus"][0]["carrier"]
        make_savable(lab, "vm-1")
        lab.run(f"printf '#!/bin/sh\\n[ $2 != prepare ]\\n' > {OTHER_HOOK} && chmod 755 {OTHER_HOOK}")
        assert lab.run("virsh start vm-1", check=False, timeout=120).returncode != 0
        lab.run(f"rm {OTHER_HOOK}")
        assert must(lab, "show-vm", "vm-1")["vgpus"][0]["present"], "the failed start's release took it away"
        assert must(lab, "reconcile-host", "--dry-run")["findings"] == []
        must(lab, "start-vm", "vm-1")
        boot = guest_boot(lab, "vm-1")
        lab.run("virsh managedsave vm-1", timeout=120)
        saved = must(lab, "show-vm", "vm-1")
        assert (saved["state"], saved["vgpus"]) == ("stopped", made["vgpus"])
        assert lab.run("ls /run/vgpuctl/claims").stdout.split() == [carrier]
        assert must(lab, "reconcile-host")["findings"] == []
        # The state after a host reboot: the saved memory is still there, the devices and claims are gone.
        lab.run(f"echo 1 > /sys/bus/mdev/devices/{carrier}/remove && rm /run/vgpuctl/claims/{carrier}")
        lab.run("virsh start vm-1", timeout=120)
        assert guest_boot(lab, "vm-1") == boot, "it booted afresh"
        assert MTTY_IDS in guest_devices(lab, "vm-1")
        running = [{**vgpu, "attached": True} for vgpu in made["vgpus"]]
        assert must(lab, "show-vm", "vm-1")["vgpus"] == running
        saved = must(lab, "save-vm", "vm-1")
        assert (saved["state"], saved["stop_reason"], saved["vgpus"]) == ("stopped", "saved", made["vgpus"])
        must(lab, "start-vm", "vm-1")
        assert guest_boot(lab, "vm-1") == boot, "it booted afresh"
        must(lab, "delete-vm", "vm-1")
        assert leftovers(lab) == before
