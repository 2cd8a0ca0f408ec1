"""The definition of the virtual GPU host: packages, command lines, and the hashes that name the results.

This file, files/ and module/ define the whole lab, so a hash over them identifies it. A snapshot loads only with
the same QEMU, command line and base image. The name of the snapshot contains all three, so they always match.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILES = HERE / "files"
MODULE_SOURCES = HERE / "module"

SUITE = "trixie"

# L1's tools come from the same suite as L2: a QEMU with igb and NVMe SR-IOV, and the Python that compiles .pyc files.
TOOLS_PACKAGES = (
    *("qemu-system-x86", "qemu-utils", "python3", "gcc", "make", "kmod", "linux-headers-amd64"),
    *("linux-source-6.12", "e2fsprogs", "dosfstools", "mtools", "syslinux", "busybox-static"),
)

HOST_PACKAGES = (
    *("systemd", "systemd-sysv", "udev", "dbus", "kmod", "iproute2", "procps", "pciutils", "openssh-server"),
    *("busybox-static", "nftables", "less", "libvirt-daemon-system", "libvirt-daemon-driver-qemu"),
    *("libvirt-clients", "qemu-system-x86", "qemu-utils", "dnsmasq-base", "python3", "python3-libvirt"),
    *("mdevctl", "apparmor", "virtinst", "ovmf", "swtpm", "swtpm-tools"),
    *("lvm2", "libvirt-daemon-driver-storage-logical", "libpam-systemd", "xrdp", "xorgxrdp"),
    "qemu-system-modules-opengl",
)

# A domain controller of Active Directory, for tests that sign in there. It is installed nowhere else: its services
# would start with the machine.
DIRECTORY_PACKAGES = ("samba-ad-dc", "samba-ad-provision", "iproute2")

# A desktop for VMs in L2, with what the helper in guests and log-ons need.
DESKTOP_PACKAGES = ("systemd", "systemd-sysv", "udev", "dbus", "libpam-systemd", "python3", "iproute2", "passwd")


def _dependencies(extras: Iterable[str]) -> tuple[str, ...]:
    """Return what pyproject.toml requires, without libvirt-python: that is Debian's in L2."""
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    extra = [line for name in extras for line in project["optional-dependencies"][name]]
    return tuple(line for line in (*project["dependencies"], *extra) if not line.startswith("libvirt"))


# What vgpuctl needs, and the packages that its contract tests need inside L2.
PYTHON_REQUIREMENTS = (*_dependencies(("host", "ssh", "agent")), "pytest", "hypothesis")
PYTHON_VERSION = "3.13"
PYTHON_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64")

# Kernel modules that the tiny initrd of L2 loads before it can see its root disk and its network card.
INITRD_MODULES = ("virtio_blk", "virtio_net", "crc32c_generic", "ext4")
# Kernel modules of the tiny guest L3: the power button, so that `virsh shutdown` works, and virtio ports.
GUEST_MODULES = ("button", "evdev", "virtio_pci", "virtio_console", "virtio_blk")

# What a guest needs for which QEMU draws, and the program that says who does.
DRAWING_MODULES = ("virtio_gpu",)
DRAWING = HERE / "drawing/renderer.c"

# The VFIO modules for migration, outside the module tree: only tests that ask for them use them.
VFIO_PLACE = "opt/vgpulab/vfio"

HOST_NAME = "vgpulab"
DISK_MIB = 6144
MEMORY_MIB = 6144
FLAVOURS = ("normal", "apparmor")
NVME_PORTS = ("hot0", "hot1")
NVME_VFS = 16


def kernel_command_line(flavour: str) -> str:
    """Return L2's kernel command line. `iommu=nopt`: the IOMMU translates for every device, as for passthrough."""
    words = [
        "root=/dev/vda rw console=ttyS0 quiet loglevel=4 panic=0 net.ifnames=0 mitigations=off audit=0",
        "intel_iommu=on iommu=nopt tsc=reliable no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1",
        "systemd.ssh_auto=no systemd.show_status=0 systemd.log_target=kmsg systemd.log_level=warning",
        f"selinux=0 rd.flavour={flavour}",
        "apparmor=1 security=apparmor" if flavour == "apparmor" else "apparmor=0",
    ]
    return " ".join(words)


def machine_arguments() -> list[str]:
    """Return machine options. L2 has one CPU: two race in multi-threaded emulation with nested SVM and kill L2."""
    return [
        *("-nodefaults", "-no-user-config", "-display", "none", "-vga", "none"),
        *("-machine", "q35", "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max,la57=off"),
        *("-smp", "1", "-m", str(MEMORY_MIB), "-rtc", "base=utc,clock=host"),
        *("-device", "intel-iommu,intremap=on,caching-mode=off,aw-bits=48"),
    ]


def device_arguments() -> list[str]:
    """Return the test devices. Each SR-IOV device has its own root port, so each VF has its own IOMMU group."""
    devices = [
        "virtio-blk-pci,drive=root,addr=0x3",
        "virtio-net-pci,netdev=control,addr=0x4,romfile=",
        "virtio-rng-pci,addr=0x5",
        "virtio-net-pci,netdev=link,addr=0x7,romfile=",
        "virtio-serial-pci,addr=0x6",
        "virtserialport,chardev=helper,name=org.vgpuctl.guest.0",
    ]
    ports = ["igb0", "igb1", "edu0", "pair", *NVME_PORTS]
    for number, name in enumerate(ports, start=1):
        place = f"chassis={number},slot={number},addr={number + 0xF:#x}"
        devices.append(f"pcie-root-port,id=port-{name},bus=pcie.0,{place}")
    devices += [
        "igb,id=igb0,bus=port-igb0,mac=52:54:00:9a:00:01,romfile=",
        "igb,id=igb1,bus=port-igb1,mac=52:54:00:9a:00:02,romfile=",
        "edu,id=edu0,bus=port-edu0",
        "pcie-pci-bridge,id=bridge,bus=port-pair",
        "edu,id=edu1,bus=bridge,addr=0x1",
        "edu,id=edu2,bus=bridge,addr=0x2",
    ]
    # QEMU cannot hot-plug the subsystems. The controllers must be hot-plugged, because they block snapshots.
    devices += [f"nvme-subsys,id=subsys-{port},nqn=nqn.vgpulab.{port}" for port in NVME_PORTS]
    return [word for device in devices for word in ("-device", device)]


def sources_under(directory: Path) -> list[Path]:
    """Return every file that affects the build, in a fixed order."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def module_sources(directory: Path) -> list[Path]:
    """Return the files that the compiler reads, without notes and without the output of an earlier build."""
    files = sources_under(directory)
    return [path for path in files if path.name in {"Makefile", "Kbuild"} or _is_source(path)]


def _is_source(path: Path) -> bool:
    return path.suffix in {".c", ".h"} and not path.name.endswith(".mod.c")


def key(*parts: str | Path | Iterable[str]) -> str:
    """Return a short hash over words and files (name, executable bit and content)."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            name = part.relative_to(HERE) if part.is_relative_to(HERE) else Path(part.name)
            digest.update(f"{name}\0{part.stat().st_mode & 0o100:o}\0".encode() + part.read_bytes() + b"\0")
        else:
            words = [part] if isinstance(part, str) else list(part)
            digest.update("\0".join(words).encode() + b"\1")
    return digest.hexdigest()[:12]


def nvme_properties(port: str) -> dict[str, str | int]:
    """Return the properties of an NVMe controller. Each of its VFs can have its own queues and its own interrupt."""
    queues = NVME_VFS * 2 + 2
    return {
        "driver": "nvme",
        "id": f"nvme-{port}",
        "bus": f"port-{port}",
        "serial": f"vgpulab-{port}",
        "subsys": f"subsys-{port}",
        "sriov_max_vfs": NVME_VFS,
        "sriov_vq_flexible": NVME_VFS * 2,
        "sriov_vi_flexible": NVME_VFS,
        "max_ioqpairs": queues,
        "msix_qsize": NVME_VFS + 2,
    }
