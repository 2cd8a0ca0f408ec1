# SPDX-License-Identifier: Apache-2.0
"""The port to libvirt's storage pools and to disk images."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from vgpuctl.model.port_values import ImageFile, ImageInfo, PoolInfo, VolumeInfo


class Storage(Protocol):
    """libvirt's storage pools, and images given by path. Raises the same errors as Hypervisor."""

    def pool(self, name: str) -> PoolInfo | None:
        """Return one pool by name, or None."""

    def pools(self) -> tuple[PoolInfo, ...]:
        """Return every pool, sorted by name."""

    def volumes(self, pool: str, *, refresh: bool = True) -> tuple[VolumeInfo, ...]:
        """Return an active pool's volumes, sorted by name; a volume that vanishes or cannot be read is left out.

        Without `refresh`, only those that libvirt already knows: a refresh opens every volume.
        """

    def create_pool(self, name: str, path: str) -> None:
        """Define, build, start and autostart a directory pool; the directory may exist."""

    def start_pool(self, name: str) -> None:
        """Start an inactive pool."""

    def remove_pool(self, name: str) -> None:
        """Stop and undefine a pool; its directory and files stay."""

    def volume(self, pool: str, name: str) -> VolumeInfo | None:
        """Return one volume after refreshing the pool, or None."""

    def create_volume(
        self,
        pool: str,
        name: str,
        capacity_bytes: int,
        base: str | None = None,
        base_format: str | None = None,
    ) -> VolumeInfo:
        """Create a thin qcow2 volume; an existing name is an error. `base`: create a linked clone of this image."""

    def create_private_volume(self, pool: str, name: str, data: bytes) -> VolumeInfo:
        """Create a raw volume of mode 0600 with these bytes; an existing name is an error. A failure leaves none."""

    def remove_volume(self, pool: str, name: str) -> None:
        """Delete a volume; a missing one is no error."""

    def image(self, path: str) -> ImageInfo | None:
        """Inspect an image file without changing it; None when there is no such file."""

    def list_files(self, directory: str) -> tuple[str, ...]:
        """Return the paths of a directory's files, sorted; empty where the directory cannot be read."""

    def file_system_bytes(self, directory: str) -> int | None:
        """Return the size of the file system that a directory is on, or would be created on; None where unknown."""

    def image_file(self, path: str, *, reachable: Collection[str] | None = None) -> ImageFile | None:
        """Return the file that a path leads to, and its backing file; None where it cannot be read. Runs no program.

        With `reachable`, reads only what cannot hang: files on this host's own disks, and on the servers that hold one
        of the `reachable` files, which are opened anyway. It does not read the content of devices then.
        """
