"""Builds the disk of a desktop: Debian with systemd, PAM and the helper, for VMs that libvirt starts in L2.

The disk boots as that of the tiny guest does: SeaBIOS, syslinux, and an initrd with a few modules. The root file system
is a file in it. Only the tests that need it build it; it reaches L2 as a hot-plugged disk.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.lab import guest, kernel, recipe, trees
from tests.lab.command import run
from tests.lab.image import MASKED
from tests.lab.tools_tree import inside, program, qemu_img, workshop

ROOT_MIB, DISK_MIB, PLUGGED_MIB = 768, 896, 1024
USERS = ("ada", "bob", "eve")
NAME = "debian.qcow2"
HELPER = recipe.HERE.parents[1] / "templates/guest/vgpuctl_guest.py"
COMMAND_LINE = (
    "console=ttyS0 quiet mitigations=off no_timer_check nowatchdog audit=0 net.ifnames=0 systemd.show_status=0"
)
SYSLINUX = f"""DEFAULT debian
PROMPT 0
LABEL debian
KERNEL vmlinuz
APPEND initrd=initrd {COMMAND_LINE}
"""
INIT = """#!/bin/busybox sh
# The initrd of a desktop: modules, the root file system in a file of the disk, then systemd.
bb=/bin/busybox
$bb mkdir -p /proc /sys /dev /disk /root
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
while read -r module; do
    $bb insmod "/modules/$module"
done < /modules/order
until [ -b /dev/vda ]; do
    $bb usleep 10000
done
$bb mount -t vfat /dev/vda /disk
$bb losetup /dev/loop0 /disk/root.img
$bb mount -t ext4 -o noatime /dev/loop0 /root || exec $bb sh
$bb mount --move /dev /root/dev
$bb umount /sys
$bb umount /proc
exec $bb switch_root /root /sbin/init
"""
MODULES = (
    *("virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "af_packet", "button", "evdev"),
    *("nls_cp437", "nls_ascii", "vfat", "loop", "crc32c_generic", "ext4"),
)
NETWORK = "[Match]\nName=eth0\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\n"
CONSOLE = """[Service]
ExecStart=/bin/sh -i
StandardInput=tty
StandardOutput=tty
TTYPath=/dev/ttyS0
Restart=always
RestartSec=1
[Install]
WantedBy=multi-user.target
"""
"""A root shell on the serial port, which a test asks (console.py)."""
IN_ROOT = f"""set -e
for user in {" ".join(USERS)}; do useradd --create-home $user; done
cp /etc/pam.d/vgpulab-session /etc/pam.d/lightdm
systemctl --quiet enable systemd-networkd.service console.service
python3 /root/helper.py install
rm /root/helper.py
: > /etc/machine-id
cd /usr/lib/udev
rm -f hwdb.bin $(ls -d rules.d/* | grep -vE '/(50-udev-default|80-net-setup-link|99-systemd)')
touch /etc/.updated /var/.updated
"""
"""Most rules of udev are left out, and by the stamps what follows an update: emulated, each would take seconds."""


def make_desktop(place: Path, tools: Path, modules: Path) -> None:
    """Write desktop.raw to `place`: a file system with the image of the desktop."""
    root, files = place / "root", place / "files"
    trees.make_desktop_root(root)
    files.mkdir()
    (files / "lib").symlink_to("usr/lib")
    kernel.install_modules(files, tools, modules)
    module_tree = files / "usr/lib/modules" / kernel.version(tools)
    _settings(root)
    run(["chroot", root, "sh", "-c", IN_ROOT], deadline_seconds=120)
    images = place / "images"
    images.mkdir()
    with workshop(tools) as work:
        (work / "init").write_text(INIT)
        (work / "initrd").write_bytes(guest.ramdisk(tools, work / "init", module_tree, MODULES))
        shutil.copy(kernel.image(tools), work / "vmlinuz")
        (work / "syslinux.cfg").write_text(SYSLINUX)
        _ext4(work / "root.img", root, tools, ROOT_MIB)
        with (work / "disk").open("wb") as handle:
            handle.truncate(DISK_MIB << 20)
        inside(tools, work, ["mkfs.vfat", "-n", "DEBIAN", "disk"])
        inside(tools, work, ["mcopy", "-i", "disk", "vmlinuz", "initrd", "syslinux.cfg", "root.img", "::"])
        inside(tools, work, ["syslinux", "--install", "disk"])
        qemu_img(tools, "convert", "-f", "raw", "-O", "qcow2", work / "disk", images / NAME)
    _ext4(place / "desktop.raw", images, tools, PLUGGED_MIB)
    for done in (root, files, images):
        shutil.rmtree(done)


def _settings(root: Path) -> None:
    for path, text in {
        "etc/hostname": "desktop\n",
        "etc/fstab": "",
        "etc/systemd/network/lan.network": NETWORK,
        "etc/systemd/system/console.service": CONSOLE,
        "etc/pam.d/vgpulab-session": (recipe.FILES / "host/etc/pam.d/vgpulab-session").read_text(),
        "root/helper.py": HELPER.read_text(),
    }.items():
        (root / path).write_text(text)
    for unit in MASKED:
        if not unit.startswith("systemd-networkd"):
            (root / "etc/systemd/system" / unit).unlink(missing_ok=True)
            (root / "etc/systemd/system" / unit).symlink_to("/dev/null")


def _ext4(disk: Path, root: Path, tools: Path, mib: int) -> None:
    with disk.open("wb") as handle:
        handle.truncate(mib << 20)
    options = ("-q", "-F", "-t", "ext4", "-m", "0", "-J", "size=8", "-d", str(root), str(disk))
    run(
        [*program(tools, "usr/sbin/mke2fs"), *options],
        deadline_seconds=300, env={"MKE2FS_CONFIG": str(tools / "etc/mke2fs.conf")},
    )  # fmt: skip
