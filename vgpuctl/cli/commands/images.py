# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl list-images`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, field_options, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Column, Listing, Page, name_or_count, or_unknown, shorten_names, size

if TYPE_CHECKING:
    from vgpuctl.model.results.vms import CloneResult, ImageResult


def _clone_names(children: Sequence[CloneResult]) -> tuple[str, ...]:
    return tuple(name for child in children for name in (child.vms or (child.path,)))


def _image_name(image: ImageResult) -> str:
    return image.volume or image.path


IMAGES = Listing(
    "images",
    (
        Column("image", "IMAGE", _image_name),
        Column("role", "ROLE", lambda image: image.role, is_state=True),
        Column(
            "size", "SIZE", lambda image: image.size_bytes, lambda image: size(image.size_bytes),
            numeric=True, unit="bytes",
        ),
        Column("clones", "CLONES", lambda image: len(image.children), numeric=True),
        Column("vms", "VMS", lambda image: image.vms, lambda image: name_or_count(image.vms, "VMs")),
        Column("format", "FORMAT", lambda image: image.format, lambda image: or_unknown(image.format), "wide"),
        Column("pool", "POOL", lambda image: image.pool, level="wide"),
        Column("base", "BASE", lambda image: image.base, level="wide"),
        Column("path", "PATH", lambda image: image.path, level="wide"),
        Column(
            "cloned-by", "CLONED BY", lambda image: _clone_names(image.children),
            lambda image: shorten_names(_clone_names(image.children)) or "-", "wide",
        ),
    ),
    lambda image: str(image.path),
)  # fmt: skip


def _images(data: tuple[ImageResult, ...]) -> Page:
    if not data:
        return Page(
            stderr_lines=[
                "no images to list; list-images PATH shows any image, also without clones, and those of a directory"
            ]
        )
    orphan_count = sum(image.role == "orphan" for image in data)
    stderr_lines = [f"{orphan_count} named like disks of vgpuctl, and no VM refers to them"] if orphan_count else []
    return Page(stderr_lines=stderr_lines)


@make_command(
    "list-images",
    page=_images,
    listing=IMAGES,
    examples=(
        ("vgpuctl --host sim:mixed list-images", "base images with their clones, and orphans"),
        ("vgpuctl list-images --disks", "VMs' disks too"),
        ("vgpuctl list-images --pool default", "one pool's volumes and what they are clones of"),
        ("vgpuctl --host sim:mixed list-images /srv/images/ubuntu-24.04.qcow2", "one image, also if nothing uses it"),
    ),
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option("--pool", metavar="NAME", shell_complete=complete.pools, help="Only the volumes of this storage pool.")
@click.option("--disks", is_flag=True, help="List VMs' disks and cloud-init seeds, too.")
@click.pass_obj
def list_images(settings: Settings, paths: tuple[str, ...], pool: str | None, disks: bool) -> int:
    """List the images in the storage pools, and those that VMs' disks are clones of; with --disks the disks, too.

    base: other disks are clones of it, and break when it is changed or removed. disk: a VM uses it. seed: cloud-init
    reads it in a VM. driver: guests get NVIDIA's driver from it; it is deleted with the last VM that has it. orphan: it
    is named like vgpuctl's disks (NAME-<8 digits of a uuid>), and no VM uses it. vgpuctl never removes an orphan: check
    it, then remove it with 'virsh vol-delete'. other: none of these.

    An image outside of the pools is listed only while it has clones. With PATH, exactly these files are listed, also
    those without clones; a file that does not exist is an error.
    """
    named = [field_options.absolute_path(path) or path for path in paths]
    return run.call(settings, "list-images", lambda host: host.list_images(*named, pool=pool, disks=disks))
