"""Builds Debian trees: the tools (QEMU, compiler, kernel headers), the root of L2, Samba, and a desktop.

One run downloads the kernel package together with its headers, and unpacks the kernel without installing it.
So headers, kernel and modules always match, and the build creates no unused initramfs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tests.lab import recipe
from tests.lab.command import run

TREE_DEADLINE_SECONDS = 900.0

# Runs on L1 with the tree as "$1". MMDEBSTRAP_APT_CONFIG makes L1's apt-get use the tree's package lists.
KERNEL_HOOK = r"""set -eu
version=$(basename "$(ls -d "$1"/usr/src/linux-headers-*-amd64)"); version=${version#linux-headers-}
mkdir -p "$1/kernel/deb"
cd "$1/kernel/deb"
APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -o APT::Sandbox::User=root download "linux-image-$version"
dpkg-deb -x linux-image-*.deb "$1/kernel"
rm -r "$1/kernel/deb" "$1/kernel/usr/share/doc"
"""
SOURCES_HOOK = r"""set -eu
cd "$1/usr/src"
tar -xf linux-source-*.tar.xz --wildcards '*/samples/vfio-mdev/*' '*/drivers/vfio/*' '*/iommufd/iova_bitmap.c'
mv linux-source-*/samples/vfio-mdev "$1/kernel/vfio-mdev"
mv linux-source-*/drivers/vfio "$1/kernel/vfio"
mv linux-source-*/drivers/iommu/iommufd/iova_bitmap.c "$1/kernel/vfio"
rm -r linux-source-*
"""
HOOKS = (f"--customize-hook={KERNEL_HOOK}", f"--customize-hook={SOURCES_HOOK}")
# Documentation and translations are the largest part of a minimal tree, and nothing in the lab reads them.
TRIM = (
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/icons/*",
    "--dpkgopt=path-exclude=/usr/share/fonts/*",
)


def make_tools(place: Path) -> None:
    """Build the tree with QEMU, Python 3.13, compiler and headers, and with the unpacked kernel under /kernel."""
    _debootstrap(place, recipe.TOOLS_PACKAGES, HOOKS)


def make_host_root(place: Path) -> None:
    """Build the root tree of L2, without a kernel and without the lab's files."""
    _debootstrap(place, recipe.HOST_PACKAGES, ())


def make_directory(place: Path) -> None:
    """Build the tree with Samba, which tests run as a domain controller."""
    _debootstrap(place, recipe.DIRECTORY_PACKAGES, ())


def make_desktop_root(place: Path) -> None:
    """Build the root tree of a desktop, without a kernel."""
    _debootstrap(place, recipe.DESKTOP_PACKAGES, ())


def _debootstrap(place: Path, packages: Sequence[str], options: Sequence[str]) -> None:
    mirror = os.environ.get("VGPUCTL_LAB_MIRROR")
    argv = [
        *("mmdebstrap", "--variant=minbase", "--mode=root", "--format=directory", "--quiet"),
        *("--aptopt=Apt::Install-Recommends false", "--aptopt=Acquire::Languages none", *TRIM),
        *("--include=" + ",".join(packages), *options),
        *(recipe.SUITE, str(place)),
        *([mirror] if mirror else []),
    ]
    run(argv, deadline_seconds=TREE_DEADLINE_SECONDS, env={"DEBIAN_FRONTEND": "noninteractive"})
