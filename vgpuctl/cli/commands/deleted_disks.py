# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl list-deleted`, `restore-disk` and `purge-deleted`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Column, Listing, Page, dry_run, size

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.deleted_disks import DeletedDiskResult, PurgedResult, RestoredDiskResult

DELETED_DISKS = Listing(
    "disks in the bin",
    (
        Column("id", "ID", lambda disk: disk.id),
        Column("vm", "VM", lambda disk: disk.vm),
        Column("account", "ACCOUNT", lambda disk: disk.account),
        Column(
            "size", "SIZE", lambda disk: disk.allocated_bytes, lambda disk: size(disk.allocated_bytes),
            numeric=True, unit="bytes",
        ),
        Column("deleted", "DELETED", lambda disk: disk.deleted_at),
        Column("purge", "PURGE AFTER", lambda disk: disk.purge_at),
        Column("expired", "EXPIRED", lambda disk: disk.expired, level="named"),
        Column("pool", "POOL", lambda disk: disk.pool, level="wide"),
        Column("disk", "DISK", lambda disk: disk.disk, level="wide"),
        Column(
            "capacity", "CAPACITY", lambda disk: disk.capacity_bytes, lambda disk: size(disk.capacity_bytes), "wide",
            numeric=True, unit="bytes",
        ),
        Column("uuid", "VM UUID", lambda disk: disk.vm_uuid, level="named"),
        Column("path", "PATH", lambda disk: disk.path, level="named"),
    ),
    lambda disk: str(disk.id),
)  # fmt: skip


def _deleted(data: tuple[DeletedDiskResult, ...]) -> Page:
    return Page(stderr_lines=[] if data else ["the bin is empty"])


@make_command(
    "list-deleted",
    page=_deleted,
    listing=DELETED_DISKS,
    examples=(
        ("vgpuctl --host sim:mixed list-deleted", "disks that can be brought back, the oldest first"),
        ("vgpuctl list-deleted -o wide", "with their pools and former names"),
    ),
)
@click.pass_obj
def list_deleted(settings: Settings) -> int:
    """List the disks that wait in the bin, the oldest first.

    They are disks of VMs that an account with keep_deleted_days in host.yaml deleted or refreshed. They take their
    space until they are purged.
    """
    return run.call(settings, "list-deleted", lambda host: host.list_deleted())


def _restored(result: Outcome[RestoredDiskResult]) -> Page:
    if result.dry_run:
        return dry_run(result)
    path = shlex.quote(result.data.path)
    return Page([result.data.path], [f"vgpuctl create-vm NAME --profile PROFILE --disk {path} uses it"])


@make_command(
    "restore-disk",
    page=_restored,
    shown_by="list-deleted",
    examples=(("vgpuctl --host sim:mixed restore-disk cad-07", "the disk of the deleted VM cad-07"),),
)
@click.argument("name", metavar="DISK")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def restore_disk(settings: Settings, name: str, dry_run: bool) -> int:
    """Move a disk out of the bin, and print its path for 'create-vm --disk'.

    DISK is its id in list-deleted, or the name or uuid of its VM if that had one disk. It gets its former name, or a
    similar one if that is taken. Members of the group vgpuctl who may use its pool can then read it.
    """
    return run.call(settings, "restore-disk", lambda host: host.restore_disk(name, dry_run=dry_run))


def _purged(result: Outcome[PurgedResult]) -> Page:
    if result.dry_run:
        return dry_run(result)
    return Page([f"deleted {disk.disk} of {disk.vm}" for disk in result.data.disks] or ["nothing to delete"])


@make_command(
    "purge-deleted",
    page=_purged,
    shown_by="list-deleted",
    examples=(
        (
            "vgpuctl --host sim:mixed purge-deleted cad-07 --yes",
            "the disks of the deleted VM cad-07, without a question",
        ),
        ("vgpuctl --host sim:mixed purge-deleted --expired", "those whose time is over"),
        ("vgpuctl purge-deleted --all", "the whole bin, after a question"),
    ),
)
@click.argument("names", metavar="[DISK]...", nargs=-1)
@click.option("--expired", is_flag=True, help="Those that have waited for as long as they must.")
@click.option("--all", "everything", is_flag=True, help="All disks in the bin.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def purge_deleted(settings: Settings, names: tuple[str, ...], expired: bool, everything: bool, dry_run: bool) -> int:
    """Delete disks in the bin for good.

    DISK is an id in list-deleted, or the name or uuid of a VM: all of its disks. Without --expired it asks first.
    """
    return run.call(
        settings,
        "purge-deleted",
        lambda host: host.purge_deleted(*names, expired=expired, everything=everything, dry_run=dry_run),
    )
