"""Builds the image of L2: Debian's tree, kernel, modules, Python packages, the guest, settings and keys.

The result is a read-only raw disk, a kernel and a tiny initrd. A direct kernel boot skips firmware and boot
loader, and an initrd with a few modules is faster than Debian's.
"""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from pathlib import Path

from tests.lab import guest, kernel, recipe
from tests.lab.command import run
from tests.lab.tools_tree import compile_python, program

# Units that slow down the boot or disturb a test (libvirt-guests can delay a reboot for minutes).
MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer"),
    *("e2scrub_reap.service", "fstrim.timer", "logrotate.timer", "man-db.timer", "getty@tty1.service"),
    *("serial-getty@ttyS0.service", "libvirt-guests.service", "systemd-networkd.service"),
    *("systemd-networkd.socket", "systemd-timesyncd.service", "systemd-pcrphase.service"),
    *("systemd-journal-flush.service", "sys-kernel-debug.mount", "sys-kernel-tracing.mount"),
    *("dev-mqueue.mount", "modprobe@drm.service", "modprobe@fuse.service", "modprobe@configfs.service"),
    *("modprobe@efi_pstore.service", "sys-fs-fuse-connections.mount", "sys-kernel-config.mount"),
    *("systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount", "systemd-random-seed.service"),
    *("xrdp.service", "xrdp-sesman.service"),
)


def make_pylib(place: Path, tools: Path) -> None:
    """Install vgpuctl's dependencies for L2's Python, from wheels only, and compile them with that Python."""
    platforms = [word for name in recipe.PYTHON_PLATFORMS for word in ("--platform", name)]
    argv = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-script-location"),
        *("--target", str(place)),
        *("--python-version", recipe.PYTHON_VERSION, "--implementation", "cp", "--only-binary=:all:"),
        *platforms,
        *recipe.PYTHON_REQUIREMENTS,
    ]
    run(argv, deadline_seconds=600)
    shutil.rmtree(place / "bin", ignore_errors=True)
    compile_python(tools, place, "/opt/vgpuctl/lib")


def make_image(place: Path, tools: Path, host_root: Path, modules: Path, vfio: Path, pylib: Path) -> None:
    """Write disk.raw, vmlinuz, initrd, the ssh key and known_hosts to `place`."""
    root = place / "root"
    # These are hard links to the cached tree: replace a file, never change it in place.
    run(["cp", "-al", host_root, root], deadline_seconds=120)
    kernel.install_modules(root, tools, modules)
    module_tree = root / "usr/lib/modules" / kernel.version(tools)
    for module in vfio.glob("*.ko"):
        shutil.copy(module, _fresh(root / recipe.VFIO_PLACE / module.name))
    _settings(root)
    _keys(place, root)
    run(["cp", "-a", pylib, _fresh(root / "opt/vgpuctl/lib")], deadline_seconds=60)
    (root / "opt/vgpuctl/src").mkdir()
    _install_guest(root, place / "guest", tools, module_tree)
    shutil.copy(kernel.image(tools), place / "vmlinuz")
    init = recipe.FILES / "initrd/init"
    (place / "initrd").write_bytes(guest.ramdisk(tools, init, module_tree, recipe.INITRD_MODULES))
    _file_system(place / "disk.raw", root, tools)
    shutil.rmtree(root)
    shutil.rmtree(place / "guest")


def _settings(root: Path) -> None:
    source = recipe.FILES / "host"
    for path in recipe.sources_under(source):
        shutil.copy(path, _fresh(root / path.relative_to(source)))
    _write(root / "etc/hostname", recipe.HOST_NAME + "\n")
    _write(root / "etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {recipe.HOST_NAME}\n")
    _write(root / "etc/machine-id", uuid.uuid5(uuid.NAMESPACE_DNS, recipe.HOST_NAME).hex + "\n")
    # fstab has no line for the root disk: systemd would wait for its device unit.
    _write(root / "etc/fstab", "")
    _write(root / "etc/resolv.conf", "")
    # Stamps newer than /usr make systemd skip its work after an update (ldconfig, users, catalogue).
    for stamp in ("etc/.updated", "var/.updated"):
        _write(root / stamp, "")
    # Without sessions of logind, ssh logs in faster; `vgpulab-session` makes one.
    pam = root / "etc/pam.d/common-session"
    _write(pam, "".join(line for line in pam.read_text().splitlines(True) if "pam_systemd.so" not in line))
    for unit in MASKED:
        _fresh(root / "etc/systemd/system" / unit).symlink_to("/dev/null")


def _keys(place: Path, root: Path) -> None:
    """Create one key for the tests and one for the host. L2 accepts only that client, the tests only that host."""
    for old in (root / "etc/ssh").glob("ssh_host_*"):
        old.unlink()
    for name in ("id_ed25519", "host_key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "vgpulab", "-f", str(place / name)]
        run(argv, deadline_seconds=30)
    authorized = _fresh(root / "root/.ssh/authorized_keys")
    authorized.parent.chmod(0o700)
    shutil.copy(place / "id_ed25519.pub", authorized)
    host_key = _fresh(root / "etc/ssh/ssh_host_ed25519_key")
    shutil.copy(place / "host_key", host_key)
    host_key.chmod(0o600)
    shutil.copy(place / "host_key.pub", root / "etc/ssh/ssh_host_ed25519_key.pub")
    kind, public = (place / "host_key.pub").read_text().split()[:2]
    (place / "known_hosts").write_text(f"{recipe.HOST_NAME} {kind} {public}\n")


def _install_guest(root: Path, work: Path, tools: Path, module_tree: Path) -> None:
    work.mkdir()
    guest.make_guest(work, tools, module_tree)
    for name in ("vmlinuz", "initrd", "cmdline"):
        shutil.copy(work / name, _fresh(root / "var/lib/vgpulab" / name))
    for name in ("tiny.qcow2", "drawing.qcow2"):
        shutil.copy(work / name, _fresh(root / "var/lib/libvirt/images" / name))


def _file_system(disk: Path, root: Path, tools: Path) -> None:
    """Make an ext4 file system with a journal, as on a real host: tests reset L2 while it is writing."""
    with disk.open("wb") as handle:
        handle.truncate(recipe.DISK_MIB << 20)
    options = [
        "-q",
        "-F",
        "-t",
        "ext4",
        "-m",
        "0",
        "-i",
        "32768",
        "-J",
        "size=32",
        "-E",
        "lazy_itable_init=1",
    ]
    argv = [*program(tools, "usr/sbin/mke2fs"), *options, "-d", str(root), str(disk)]
    run(argv, deadline_seconds=300, env={"MKE2FS_CONFIG": str(tools / "etc/mke2fs.conf")})


def _fresh(path: Path) -> Path:
    """Remove what is at this path, so that a write does not follow a hard link or symlink into the cached tree."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.exists():
        os.unlink(path)
    return path


def _write(path: Path, text: str) -> None:
    _fresh(path).write_text(text)
