# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for programs of the distribution and of NVIDIA on a bare host. They do only what the roles need.

A reboot (`shutdown`) applies the kernel command line from GRUB, turns the IOMMU on if the command line says so, and
loads NVIDIA's driver instead of nouveau if one is installed. Each program records its changes in /fake/done.
"""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path

VERSION = "550.90.05"
PYTHON = "/usr/lib/python3/dist-packages"
RUN_FILE = f"NVIDIA-Linux-x86_64-{VERSION}-vgpu-kvm.run"

UPDATE_GRUB = """\
#!/bin/sh
. /etc/default/grub.d/vgpuctl.cfg
mkdir -p /boot/grub
printf '\\tlinux\\t/boot/vmlinuz-1 root=/dev/vda quiet %s\\n' "$GRUB_CMDLINE_LINUX" > /boot/grub/grub.cfg
echo update-grub >> /fake/done
"""
UPDATE_INITRAMFS = """\
#!/bin/sh
date > "/boot/initrd.img-$(uname -r)"
echo "update-initramfs $*" >> /fake/done
"""
SHUTDOWN = """\
#!/bin/sh
sed -n 's/.*vmlinuz-1 //p' /boot/grub/grub.cfg > /proc/cmdline
case "$(cat /proc/cmdline)" in *intel_iommu=on*) mkdir -p /sys/kernel/iommu_groups/0 ;; esac
rm -rf /sys/module/nouveau /run/reboot-required
if [ -e /fake/nvidia ]; then mkdir -p /sys/module/nvidia && cp /fake/nvidia /sys/module/nvidia/version; fi
echo reboot >> /fake/done
echo "boot-$(grep -c reboot /fake/done)" > /proc/sys/kernel/random/boot_id
"""
MODPROBE = """\
#!/bin/sh
if [ -e /fake/console-on-nouveau ]; then echo 'modprobe: FATAL: Module nouveau is in use.' >&2; exit 1; fi
rm -rf /sys/module/nouveau
echo "modprobe $*" >> /fake/done
"""
MODINFO = "#!/bin/sh\nexec cat /fake/nvidia\n"
SYSTEMCTL = """\
#!/bin/sh
# Units are files: /fake/units/NAME says "enabled", "active", or both.
mkdir -p /fake/units
verb=$1 unit=$2
file=/fake/units/$unit
has() { grep -qs "$1" "$file"; }
case $verb in
    show)
        if has active; then state=active; else state=inactive; fi
        if has enabled; then enabled=enabled; else enabled=disabled; fi
        printf 'Id=%s\\nLoadState=loaded\\nActiveState=%s\\nUnitFileState=%s\\n' "$unit" $state $enabled ;;
    is-enabled) if has enabled; then echo enabled; else echo disabled; exit 1; fi ;;
    is-active) if has active; then echo active; else echo inactive; exit 3; fi ;;
    enable) echo enabled >> "$file"; echo "enable $unit" >> /fake/done ;;
    start) echo active >> "$file"; echo "start $unit" >> /fake/done ;;
    restart) echo active >> "$file"; echo "restart $unit" >> /fake/done ;;
esac
"""
VIRSH = """\
#!/bin/sh
case "$3" in
    net-info)
        active=no; autostart=no
        grep -qs net-start /fake/done && active=yes
        grep -qs net-autostart /fake/done && autostart=yes
        printf 'Name: %s\\nActive:         %s\\nAutostart:      %s\\n' "$4" $active $autostart ;;
    list) cat /fake/vms 2>/dev/null; echo ;;
    *) echo "virsh $3 $4" >> /fake/done ;;
esac
"""
RUN = f"""\
#!/bin/sh
# What NVIDIA's installer does, as far as anybody looks.
if [ -e /sys/module/nouveau ]; then echo 'ERROR: The Nouveau kernel driver is currently in use' >&2; exit 1; fi
echo {VERSION} > /fake/nvidia
echo "run $*" >> /fake/done
"""
NVIDIA_SMI = """\
#!/bin/sh
# Licensed when nvidia-gridd was started with a token.
state='Unlicensed (Unrestricted)'
if ls /etc/nvidia/ClientConfigToken/*.tok > /dev/null 2>&1 && tail -n 1 /fake/done | grep -q nvidia-gridd; then
    state='Licensed (Expiry: 2027-1-2 3:4:5 GMT)'
fi
printf '    vGPU Software Licensed Product\\n        License Status                    : %s\\n' "$state"
"""
GUEST_DRIVER = {"/fake/nvidia": VERSION, "/usr/bin/nvidia-smi": NVIDIA_SMI, "/usr/bin/nvidia-gridd": "#!/bin/sh\n"}
PROGRAMS = {
    "/usr/sbin/update-grub": UPDATE_GRUB,
    "/usr/sbin/update-initramfs": UPDATE_INITRAMFS,
    "/usr/sbin/shutdown": SHUTDOWN,
    "/usr/sbin/modinfo": MODINFO,
    "/usr/sbin/modprobe": MODPROBE,
    "/usr/bin/systemctl": SYSTEMCTL,
}
"""The programs of a bare Debian."""
RPM = """\
#!/bin/sh
shift
for name; do
    case $name in nvidia-vgpu*) echo "package $name is not installed" ;; *) echo "$name" ;; esac
done
exit 1
"""
GRUBBY = """\
#!/bin/sh
words=$(cat /fake/args 2>/dev/null || echo ro quiet)
if [ "$1" = --info=ALL ]; then
    printf 'index=0\\nkernel="/boot/vmlinuz-1"\\nargs="%s"\\n' "$words"
    exit
fi
for option; do
    case $option in
        --args=*) words="$words ${option#--args=}" ;;
        --remove-args=*)
            for old in ${option#--remove-args=}; do words=$(echo " $words " | sed "s, $old , ,"); done ;;
    esac
done
echo $words > /fake/args
echo "grubby $*" >> /fake/done
"""
RED_HATS_PROGRAMS = {
    "/usr/bin/rpm": RPM,
    "/usr/sbin/grubby": GRUBBY,
    "/usr/bin/systemctl": SYSTEMCTL,
    "/usr/bin/virsh": VIRSH,
}
RED_HAT = {"/etc/redhat-release": "Red Hat Enterprise Linux release 10.0 (Coughlan)\n"}
# Ansible's pip module requires the real `packaging`, so its package contains the tests' own copy.
_PACKAGING = Path(str(importlib.util.find_spec("packaging").origin)).parent
PACKAGES = {
    "python3-packaging": {f"{PYTHON}/packaging/{path.name}": path.read_text() for path in _PACKAGING.glob("*.py")},
    **{name: {} for name in ("qemu-system-x86", "libvirt-daemon-system", "ovmf", "swtpm", "swtpm-tools")},
    **{
        f"python3-{name}": {}
        for name in ("alembic", "argon2", "paramiko", "psycopg", "sqlalchemy", "starlette", "uvicorn", "wsproto")
    },
    **{name: {} for name in ("gcc", "make", "dkms", f"linux-headers-{platform.release()}")},
    "libvirt-clients": {"/usr/bin/virsh": VIRSH},
}
"""The packages in the bare host's repository."""
HARDWARE = {
    "/sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:3b:00.0/class": "0x030200\n",
    "/sys/bus/pci/devices/0000:3b:00.0/sriov_totalvfs": "16\n",
    "/sys/bus/pci/devices/0000:02:00.0/vendor": "0x1a03\n",
    "/sys/bus/pci/devices/0000:02:00.0/class": "0x030000\n",
    "/sys/firmware/acpi/tables/DMAR": "DMAR",
    "/sys/module/nouveau/refcnt": "0\n",
}
"""An Intel host with an A100 and a BMC, VT-d on, and nouveau loaded."""
