# SPDX-License-Identifier: Apache-2.0
"""Images, disks and ISO files that a member of the group may name.

A path is looked at only if it is below a folder of host.yaml. It must lead to a file below such a folder, by folders
that are root's alone: so it leads there also when QEMU opens it, later. The same holds for every backing file that the
image names. A disk of a VM is nobody's image: it may be another user's, and a guest could write a header into it that
names a file of this host.
"""

from __future__ import annotations

import posixpath
from functools import cached_property
from typing import TYPE_CHECKING

from vgpuctl.config.allow_spec import AllowSpec
from vgpuctl.errors import NotAllowed, NotFound
from vgpuctl.model.deleted_disk import BIN_FOLDER
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.guards import require_libvirt

if TYPE_CHECKING:
    from vgpuctl.model.port_values import ImageInfo
    from vgpuctl.model.vm import Vm
    from vgpuctl.ports.host import Host

_DIRECTORY_POOLS = ("dir", "fs", "netfs")
_FORMATS = ("raw", "qcow2")
_RULE = "agent.allow.folders"


class AllowedFiles:
    """The files of a host that members may name."""

    def __init__(self, host: Host, allow: AllowSpec) -> None:
        self._host = host
        self._allow = allow

    def resolve(self, path: str) -> str:
        """Return where the path of a file leads.

        Raises:
            NotAllowed: it is not below an allowed folder, or somebody other than root decides where it leads.
            NotFound: there is no such file.
        """
        plain = posixpath.normpath(path)
        if plain != path or not _is_below(path, self._folders):
            raise self._outside(path, path)
        resolved = self._host.storage.resolve(path)
        if resolved is None:
            raise NotFound(f"file {path} does not exist", hint="vgpuctl list-images shows images", path=path)
        if not _is_below(resolved.path, self._resolved_folders) or BIN_FOLDER in resolved.path.split("/"):
            raise self._outside(path, resolved.path)
        if resolved.exposure is not None:
            raise NotAllowed(
                f"{path} is not safe to use: {resolved.exposure}",
                hint=f"as root: chown root: and chmod go-w for it; namei -l {path}",
                rule=_RULE,
                path=path,
            )
        return resolved.path

    def new_file(self, path: str) -> None:
        """Refuse the path of a file that does not exist yet; its folder does.

        Raises:
            NotAllowed, NotFound: as `resolve`, of the folder.
        """
        folder = posixpath.dirname(path)
        if posixpath.normpath(path) != path or not _is_below(path, self._folders):
            raise self._outside(path, path)
        resolved = self._host.storage.resolve(folder)
        if resolved is None:
            raise NotFound(f"the folder {folder} does not exist", hint=f"install -d {folder}", path=path)
        if not _is_below(f"{resolved.path}/x", self._resolved_folders) or BIN_FOLDER in resolved.path.split("/"):
            raise self._outside(path, resolved.path)
        if resolved.exposure is not None:
            raise NotAllowed(
                f"{folder} is not safe to use: {resolved.exposure}",
                hint=f"as root: chown root: and chmod go-w for it; namei -l {folder}",
                rule=_RULE,
                path=path,
            )

    def image(self, path: str) -> str:
        """Return where the path of an image, a disk or an ISO file leads; all of its backing files are allowed too.

        Raises:
            NotAllowed: it is not allowed, or it is a disk of a VM.
            NotFound: there is no such file.
        """
        resolved = self.resolve(path)
        info = self._host.storage.image(resolved)
        if info is None:
            raise NotFound(f"file {path} does not exist", path=path)
        if info.unsafe_reason is not None or info.format not in _FORMATS or not info.backing_chain:
            reason = info.unsafe_reason or info.access_problem or f"its format is {info.format}, not raw or qcow2"
            raise NotAllowed(f"{path} is not safe to use: {reason}", hint="ask root", rule=_RULE, path=path)
        for file in info.backing_chain[1:]:
            self.resolve(file.path)
        self._refuse_disks_of_vms(path, info)
        return resolved

    def _refuse_disks_of_vms(self, path: str, info: ImageInfo) -> None:
        chain = {file.identity: file.path for file in info.backing_chain}
        disks = self._host.storage.image_files(self._vm_by_disk, reachable=tuple(chain.values()))
        user = next((self._vm_by_disk[disk] for disk, file in disks.items() if file.identity in chain), None)
        if user is not None:
            raise NotAllowed(
                f"{path} is, or is made from, a disk of VM {user.name}",
                hint="use an image that no VM has as its disk",
                rule=_RULE,
                path=path,
                vm=user.name,
            )

    @cached_property
    def _vm_by_disk(self) -> dict[str, Vm]:
        """The VM that has each file as its disk, by path."""
        snapshot = observe(self._host, ReadScope(models=False, gpu_addresses=frozenset()))
        require_libvirt(snapshot)
        return {path: vm for vm in snapshot.vms for path in self._disk_paths(vm)}

    def _disk_paths(self, vm: Vm) -> set[str]:
        records = [record for record in (vm.record, vm.copied_record) if record is not None]
        paths = {disk.path for record in records for disk in record.disks}
        paths |= {disk.path for disk in vm.unreadable_disks}
        for disk in vm.disks:
            if disk.device == "cdrom":
                continue
            volume = self._host.storage.volume(*disk.volume) if disk.source is None and disk.volume else None
            paths |= {path for path in (disk.source, None if volume is None else volume.path) if path}
        return paths

    @cached_property
    def _folders(self) -> tuple[str, ...]:
        """The allowed folders, as host.yaml and libvirt name them."""
        pools = (self._host.storage.pool(name) for name in self._allow.pools)
        paths = (pool.path for pool in pools if pool is not None and pool.kind in _DIRECTORY_POOLS)
        return (*self._allow.folders, *(path.rstrip("/") for path in paths if path))

    @cached_property
    def _resolved_folders(self) -> tuple[str, ...]:
        resolved = (self._host.storage.resolve(folder) for folder in self._folders)
        return tuple(folder.path for folder in resolved if folder is not None)

    def _outside(self, path: str, leads_to: str) -> NotAllowed:
        """Return the error for a path; it tells nothing of what is there."""
        where = path if path == leads_to else f"{path} leads to {leads_to}, which"
        return NotAllowed(
            f"{where} is in no folder that host.yaml allows",
            hint="agent: {allow: {folders: [FOLDER]}} in host.yaml allows the images in a folder that is root's alone",
            rule=_RULE,
            path=path,
        )


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(folder not in ("", "/") and path.startswith(f"{folder}/") for folder in folders)
