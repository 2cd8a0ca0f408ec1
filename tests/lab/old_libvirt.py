"""Replaces the lab's libvirt with libvirt 9.0 from Debian 12: only its daemon and libraries, on L2's Debian 13.

The few packages (10 MB unpacked, seconds to download) are enough, because Debian 13 has their other dependencies. QEMU
and everything else are L2's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab import cache, recipe
from tests.lab.command import run
from tests.lab.machine import Lab

SUITE = "bookworm"
PACKAGES = ("libvirt0", "libvirt-daemon", "libvirt-daemon-driver-qemu", "libyajl2")
PLACE = "/opt/libvirt9"
SOCKET = "/run/libvirt9/libvirt-sock"
URI = f"qemu:///system?socket={SOCKET}"
UNPACK = f"""set -eu
mkdir "$1/deb" && cd "$1/deb"
APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -q -o APT::Sandbox::User=root download {" ".join(PACKAGES)}
for package in *.deb; do dpkg-deb -x "$package" "$1"; done
rm -r "$1/deb" "$1/usr/share"
"""
START = f"""
mkdir -p /run/libvirt9
cat > /run/libvirt9/libvirtd.conf <<'END'
unix_sock_dir = "/run/libvirt9"
auth_unix_rw = "none"
auth_unix_ro = "none"
END
systemctl stop libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket libvirtd.service
lib={PLACE}/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$lib LIBVIRT_DRIVER_DIR=$lib/libvirt/connection-driver
export LIBVIRT_LOCK_MANAGER_PLUGIN_DIR=$lib/libvirt/lock-driver
export LIBVIRT_STORAGE_BACKEND_DIR=$lib/libvirt/storage-backend LIBVIRT_STORAGE_FILE_DIR=$lib/libvirt/storage-file
cd /run/libvirt9
setsid {PLACE}/usr/sbin/libvirtd -p /run/libvirt9/pid -f /run/libvirt9/libvirtd.conf > log 2>&1 < /dev/null &
"""


def tree() -> Path:
    """Return the directory of the unpacked packages in the cache."""
    root = cache.cache_dir()
    with cache.build_lock(root):
        return cache.stage(root, "libvirt9", recipe.key(SUITE, PACKAGES, UNPACK), _unpack)


def _unpack(place: Path) -> None:
    mirror = os.environ.get("VGPUCTL_LAB_MIRROR")
    words = ("--variant=extract", "--mode=root", "--format=directory", "--quiet", f"--extract-hook={UNPACK}")
    argv = ["mmdebstrap", *words, SUITE, str(place / "root"), *([mirror] if mirror else [])]
    run(argv, deadline_seconds=300, env={"DEBIAN_FRONTEND": "noninteractive"})


@contextmanager
def old_libvirt(lab: Lab) -> Iterator[str]:
    """Stop L2's libvirt and start libvirt 9.0; yield the URI of its socket."""
    lab.push(tree() / "root/usr", f"{PLACE}/usr")
    lab.run(START)
    lab.wait_until(f"[ -S {SOCKET} ]")
    yield URI
    lab.run("kill $(cat /run/libvirt9/pid)")
