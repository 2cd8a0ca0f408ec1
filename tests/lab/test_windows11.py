"""A VM for Windows 11 with real OVMF, secure boot, swtpm, and KVM's Hyper-V enlightenments. No test runs Windows.

UEFI under KVM kills the emulated host (CONTRIBUTING.md, "The lab"), so the tests check the two halves separately. One
VM runs the firmware on an emulated CPU, as the built-in template does on a host without KVM. Another uses KVM and BIOS.
"""

from __future__ import annotations

import re

import pytest

from tests.lab.console import guest_devices, read_console
from tests.lab.machine import Lab
from tests.lab.vgpuctl_in import call, leftovers, must, put_gpu

REQUEST = ("--os", "windows11", "--profile", "A100-4C", "--memory", "4GiB", "--vcpus", "2")
SWTPM = "/usr/bin/swtpm"
UNSIGNED = "/var/lib/libvirt/images/unsigned.qcow2"
# `debug` makes swtpm log the requests of the firmware.
EMULATED = """set -e
mkdir -p /etc/vgpuctl/templates
sed -e 's/vm\\.kvm/false/g' -e "s/version='2.0'/& debug='4'/" /opt/vgpuctl/src/templates/vm.xml.j2 \
    > /etc/vgpuctl/templates/emulated.xml.j2"""
# A disk with an EFI system partition and Debian's kernel as its boot loader, which has no signature by Microsoft.
# busybox creates only FAT32. With fewer than 65525 clusters of 512 bytes the firmware reads it as FAT16: hence 40 MiB.
MAKE_UNSIGNED = f"""set -e
disk=$(mktemp)
python3 - $disk <<'END'
import sys
start, sectors = 2048, 40 << 11
entry = bytes((0, 0, 0, 0, 0xEF, 0, 0, 0)) + start.to_bytes(4, "little") + sectors.to_bytes(4, "little")
with open(sys.argv[1], "wb") as file:
    file.write(bytes(446) + entry + bytes(48) + b"\\x55\\xaa")
    file.truncate((start + sectors) * 512)
END
modprobe vfat
loop=$(losetup --find --show --offset $((2048 * 512)) $disk)
busybox mkdosfs $loop
mount $loop /mnt
mkdir -p /mnt/EFI/BOOT
cp /var/lib/vgpulab/vmlinuz /mnt/EFI/BOOT/BOOTX64.EFI
umount /mnt
losetup --detach $loop
qemu-img convert -f raw -O qcow2 $disk {UNSIGNED}
rm $disk"""
# TPM2_PCR_Extend (command 0x182; TPM 2.0 library, part 3): the firmware measures what it runs.
EXTEND = re.compile(r"SWTPM_IO_Read: length \d+\s+80 02 00 00 00 .. 00 00 01 82 ")
KEPT = "ls /var/lib/libvirt/qemu/nvram/win_VARS.fd /var/lib/libvirt/swtpm/{}/tpm2/tpm2-00.permall"
NOT_LOADED = r"BdsDxe: failed to load Boot0001[^\r]*\r"


def windows_leftovers(lab: Lab) -> str:
    """Return what is left on the host, including UEFI variable stores and TPM state; empty on a clean host."""
    script = "find /var/lib/libvirt/qemu/nvram /var/lib/libvirt/swtpm /run/libvirt/qemu/swtpm -mindepth 1"
    return leftovers(lab) + lab.run(script, check=False).stdout


@pytest.mark.deadline(1500)
def test_the_firmware_for_windows_11_measures_its_boot_and_refuses_unsigned_loaders(lab_apparmor: Lab) -> None:
    lab = lab_apparmor
    put_gpu(lab, "mdev-vf")
    lab.run(f"{EMULATED}\n{MAKE_UNSIGNED}")
    before = windows_leftovers(lab)
    made = must(lab, "create-vm", "win", *REQUEST, "--image", UNSIGNED, "--template", "emulated")
    assert (made["state"], made["firmware"], len(made["vgpus"])) == ("running", "uefi", 1)
    live = lab.run("virsh dumpxml win").stdout
    for part in (
        "<loader .*secure='yes'",
        "<nvram template='[^']*\\.ms\\.fd'",
        "<smm state='on'",
        "<tpm model='tpm-crb'",
    ):
        assert re.search(part, live), live
    output = read_console(lab, "win", NOT_LOADED, timeout=900)
    assert re.search("failed to load Boot0001.*: Access Denied", output), output
    lab.run("! cmp -s /usr/share/OVMF/OVMF_VARS_4M.ms.fd /var/lib/libvirt/qemu/nvram/win_VARS.fd")
    assert EXTEND.search(lab.read("/var/log/swtpm/libvirt/qemu/win-swtpm.log"))
    must(lab, "stop-vm", "win", "--force")
    lab.run(KEPT.format(made["uuid"]))
    spec = (
        f"{{name: win, profile: A100-4C, os: windows11, image: {UNSIGNED}, template: emulated, memory: 4GiB, vcpus: 3}}"
    )
    lab.run("vgpuctl --yes ensure-vm -f -", stdin=spec)
    assert "sockets='1' dies='1' clusters='1' cores='3'" in lab.run("virsh dumpxml win").stdout
    lab.run(KEPT.format(made["uuid"]))
    must(lab, "delete-vm", "win")
    assert windows_leftovers(lab) == before


@pytest.mark.deadline(400)
def test_without_swtpm_or_firmware_with_keys_windows_11_is_refused_before_any_change(lab: Lab) -> None:
    put_gpu(lab, "mdev-vf")
    before = windows_leftovers(lab)
    firmware = "/usr/share/qemu/firmware"
    for away, check in (
        (f"{firmware}/40-*", "uefi-secure-boot"),
        (f"{firmware}/[45]0-*", "uefi-secure-boot"),
        (SWTPM, "tpm"),
    ):
        lab.run(f"mkdir /root/away && mv {away} /root/away")
        status, document = call(lab, "create-vm", "win", *REQUEST, "--disk", "1GiB")
        assert (status, document["error"]["facts"].get("check")) == (6, check), document
        assert "install" in document["error"]["hint"]
        assert windows_leftovers(lab) == before
        lab.run(f"mv /root/away/* {away.rpartition('/')[0]} && rmdir /root/away")
    must(lab, "create-vm", "win", *REQUEST, "--disk", "1GiB", "--no-start")
    must(lab, "delete-vm", "win")
    assert windows_leftovers(lab) == before


@pytest.mark.deadline(400)
def test_kvm_accepts_the_enlightenments_and_cpus_for_windows_11(lab: Lab) -> None:
    put_gpu(lab, "mdev-vf")
    xml = lab.run(["vgpuctl", "create-vm", "win", *REQUEST, "--disk", "1GiB", "--print-xml"]).stdout
    for pattern, replacement in (
        ("<os firmware='efi'>", "<os>"),
        ("<(firmware|metadata|hostdev)[ >].*?</\\1>", ""),
        ("/var/lib/libvirt/images/win-[^']*", "/var/lib/libvirt/images/tiny.qcow2"),
        (">4096<", ">256<"),
    ):
        xml, count = re.subn(pattern, replacement, xml, flags=re.DOTALL)
        assert count, pattern
    lab.run("virsh define --validate /dev/stdin", stdin=xml)
    lab.run("virsh start win", timeout=120)
    assert guest_devices(lab, "win")
    lab.run("virsh destroy win; virsh undefine win --tpm")
