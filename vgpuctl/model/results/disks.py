# SPDX-License-Identifier: Apache-2.0
"""Disks of VMs, and the images that they are clones of."""

from __future__ import annotations

from typing import Annotated, Literal

from vgpuctl.value import Value


class DiskResult(Value):
    """A disk or CD-ROM of a VM. `made`: vgpuctl made it, and deletes it with the VM.

    `base` is the image it is a linked clone of; the size is null for what vgpuctl did not make.
    """

    path: str | None
    device: Annotated[str, "disk", "cdrom"]
    size_bytes: int | None
    base: str | None
    made: bool


class KeptDiskResult(Value):
    """A disk that stays although its VM is deleted."""

    path: str
    size_bytes: int | None
    base: str | None


class CloneResult(Value):
    """A disk that is a clone of an image, with the VMs that refer to it."""

    path: str
    vms: tuple[str, ...]


class ImageResult(Value):
    """A volume, or a base image outside of the pools (`pool` and `volume` null). Format and size null: not known.

    `role` orphan: named as vgpuctl names disks, and no VM refers to it.
    """

    path: str
    pool: str | None
    volume: str | None
    format: str | None
    size_bytes: int | None
    role: Literal["base", "disk", "orphan", "other"]
    base: str | None
    vms: tuple[str, ...]
    children: tuple[CloneResult, ...]
