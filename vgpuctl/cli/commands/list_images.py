# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl list-images`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "list-images",
    examples=(
        ("vgpuctl --host sim:mixed list-images", "base images with their clones, disks, and orphans"),
        ("vgpuctl list-images --pool default", "one pool's volumes and what they are clones of"),
    ),
)
@click.option("--pool", metavar="NAME", shell_complete=complete.pools, help="Only this storage pool's volumes.")
@click.pass_obj
def command(settings: Settings, pool: str | None) -> int:
    """List the volumes of the storage pools and the images that disks of VMs are clones of.

    base: something is a clone of it, and breaks when it is changed or removed. disk: a VM refers to it. orphan:
    named as vgpuctl names disks (NAME-<8 digits of a uuid>.qcow2), and no VM refers to it; look before you remove it
    with 'virsh vol-delete': vgpuctl never does.
    """
    return run.call(settings, "list-images", lambda host: host.list_images(pool=pool))
