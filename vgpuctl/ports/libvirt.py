# SPDX-License-Identifier: Apache-2.0
"""The ports to libvirt: domains and networks; storage pools and disk images."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from socket import socket
from typing import Protocol

from vgpuctl.model.deleted_disk import BinnedVolume
from vgpuctl.model.migration import MigrationProgress, MigrationRequest
from vgpuctl.model.port_values import (
    DetachOutcome,
    DomainEvent,
    DomainInfo,
    DomainLeftovers,
    DomainStatus,
    GuestAddress,
    HypervisorCapabilities,
    HypervisorStatus,
    ImageFile,
    ImageInfo,
    NetworkInfo,
    PoolInfo,
    RebootOutcome,
    ResolvedPath,
    VolumeInfo,
)
from vgpuctl.ports.system import Watch


class DeviceRemoval(Protocol):
    """How a running guest responds to the request to release a device."""

    def wait(self, deadline_seconds: float) -> DetachOutcome:
        """Wait until libvirt reports the outcome, up to the deadline. The live XML afterwards is authoritative."""


class GuestReboot(Protocol):
    """Whether a running guest reboots."""

    def wait(self, deadline_seconds: float) -> RebootOutcome:
        """Wait until libvirt reports that the domain was reset or is off, up to the deadline."""


class Hypervisor(Protocol):
    """libvirt's domains and networks. Methods take a domain's uuid, except those that look up a name.

    Every method raises LibvirtFailed (facts: libvirt_code, call), or HostCannot with check="libvirt" when
    libvirt does not answer.
    """

    def status(self) -> HypervisorStatus:
        """Return whether libvirt answers, and if not, why. Never raises."""

    def capabilities(self) -> HypervisorCapabilities:
        """Return what domains can use on this host."""

    def domains(self) -> tuple[DomainInfo, ...]:
        """Return every domain, sorted by name. A domain that vanishes while listing is left out."""

    def find_domain(self, name_or_uuid: str) -> DomainInfo | None:
        """Return one domain by exact name or uuid, or None."""

    def define(self, xml: str) -> DomainInfo:
        """Define a new domain with VIR_DOMAIN_DEFINE_VALIDATE and return it as libvirt re-reads it."""

    def undefine(self, uuid: str) -> None:
        """Undefine a stopped domain with its NVRAM, TPM, managed save, snapshot and checkpoint metadata."""

    def set_record(self, uuid: str, xml: str | None) -> None:
        """Set or delete (None) the element of namespace urn:vgpuctl:1 in the domain's config metadata."""

    def leftovers(self, uuid: str) -> DomainLeftovers:
        """Return what undefine would remove in addition to the definition."""

    def start(self, uuid: str) -> None:
        """Start a defined domain; returns when libvirt reports that it runs."""

    def shutdown(self, uuid: str) -> None:
        """Ask the guest to power off (ACPI); returns at once."""

    def destroy(self, uuid: str) -> None:
        """Force the domain off; returns when it is off. A domain that is already off is no error."""

    def wait_stopped(self, uuid: str, deadline_seconds: float) -> bool:
        """Wait until the domain is off or gone; False when the deadline passes first."""

    def reboot(self, uuid: str) -> None:
        """Ask the guest to reboot, by its agent or ACPI; returns at once. Error 55 when the domain is off."""

    def reset(self, uuid: str) -> None:
        """Reset the domain at once, as the reset button does. Error 55 when the domain is off."""

    def watch_reboot(self, uuid: str) -> AbstractContextManager[GuestReboot]:
        """Watch libvirt's events about a domain's reboot, from the beginning of the `with` block.

        Call `reboot` or `reset` inside the block, so that no event is missed. Error 42 when there is no such domain.
        """

    def network(self, name: str) -> NetworkInfo | None:
        """Return one network by name, or None."""

    def networks(self) -> tuple[NetworkInfo, ...]:
        """Return every network, sorted by name; one that vanishes while listing is left out."""

    def definition(self, uuid: str) -> str:
        """Return a domain's config with the secrets that a read hides (a VNC password). Use it only to redefine."""

    def redefine(self, uuid: str, xml: str) -> DomainInfo:
        """Replace an existing domain's config by `xml`, validated, and return it as libvirt re-reads it.

        Error 42 when there is no such domain, 9 when `xml` gives it another name.
        """

    def attach_device(self, uuid: str, xml: str, live: bool) -> None:
        """Add a device to the domain's config and, with `live`, to the running domain: to both or to neither.

        Error 1 when no PCI port is free, 67 when the alias already exists, 99 when the mdev does not exist.
        """

    def detach_device(self, uuid: str, alias: str, *, live: bool, config: bool) -> None:
        """Remove the device with this alias from the config (`config`) and have the running guest release it (`live`).

        The guest decides when to release the device: it is removed once the live XML lacks it. Error 9 when the guest
        refuses, 1 when there is no such device; then the config keeps the device too.
        """

    def watch_device_removal(self, uuid: str, alias: str) -> AbstractContextManager[DeviceRemoval]:
        """Watch libvirt's events about a running domain's device, from the beginning of the `with` block.

        Call `detach_device` inside the block, so that no event is missed. Error 42 when there is no such domain.
        """

    def guest_addresses(self, uuid: str, source: str) -> tuple[GuestAddress, ...] | None:
        """Return a running guest's addresses from `agent`, `lease` or `arp`; None when that source does not answer.

        Libvirt's error 55 when the domain is off.
        """

    def open_graphics(self, uuid: str, index: int) -> socket:
        """Open a running domain's screen: the graphics device with this index in its XML, which is VNC.

        No password is asked for. Error 55 when the domain is off, 1 when it has no such device.
        """

    def resize_disk(self, uuid: str, path: str, capacity_bytes: int) -> None:
        """Grow a running domain's disk, and tell the guest. A block device must have this size already.

        Error 55 when the domain is off, 8 when it has no such disk.
        """

    def migration_blockers(self, uuid: str) -> tuple[str, ...] | None:
        """Return why QEMU cannot move or save a running domain now, in its words; None: it does not say.

        It is asked with QMP's `query-migrate` (blocked-reasons, QEMU 6.0). libvirt marks the domain as tainted then.
        """

    def migration_xml(self, uuid: str) -> str:
        """Return a running domain's definition as another host takes it (VIR_DOMAIN_XML_MIGRATABLE), with secrets."""

    def definition_on(self, target_uri: str, uuid: str) -> str | None:
        """Return the stored definition of a domain of another host's libvirt; None: it has no such domain."""

    def migrate(self, uuid: str, request: MigrationRequest, report: Callable[[MigrationProgress], int | None]) -> None:
        """Move a running domain to another host, where it stays paused; return when it is off here, and still defined.

        `report` gets the progress about once a second, and returns a new limit for the time that the VM stands still
        (in ms), or None. When it raises, the move is ended, the domain runs on here, and the exception is raised.

        After an error nobody but `find_domain` knows where it runs: here, as after most; or here it is paused, since
        libvirt does not know whether the other host has it; or it is off for the reason `migrated`.

        Raises:
            LibvirtFailed: libvirt's reason. HostCannot: libvirt did not answer any more.
        """

    def is_migrating(self, uuid: str) -> bool:
        """Return whether a domain is being moved away now, for whoever asked for that."""

    def resume(self, uuid: str) -> None:
        """Have a paused domain run. One that runs is no error."""

    def save(self, uuid: str, report: Callable[[MigrationProgress], int | None]) -> None:
        """Write a running domain's memory and devices to libvirt's own file; it is off then. `start` goes on from it.

        `report` as for `migrate`; what it returns is ignored.
        """

    def password_protected_graphics(self, uuid: str) -> frozenset[str] | None:
        """Return the graphics types ("vnc") that have a password, never a password; None without permission to read."""


class DomainEvents(Protocol):
    """What happens to libvirt's domains, as it happens."""

    def watch(
        self,
        *,
        on_event: Callable[[DomainEvent], None],
        on_lost: Callable[[str], None],
        on_back: Callable[[tuple[DomainStatus, ...]], None],
    ) -> Watch:
        """Watch all domains in a thread of its own, until `close`. It connects, and does so again after each loss.

        `on_lost` gets the reason when events are or may be lost, also when the first connection fails. `on_back` gets
        all domains when events arrive, first and after each `on_lost`, and may get them at any other time. An event
        that the list already contains may follow it.
        """


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
        """Create a thin qcow2 volume; an existing name is an error. `base`: create a linked clone of this image.

        In a logical pool it is a raw volume of full size, rounded up by LVM, that still holds what was there before;
        libvirt's error 1 or 67 for a `base`.
        """

    def copy_image(
        self, source: str, source_format: str, target: VolumeInfo, target_format: str, report: Callable[[float], None]
    ) -> None:
        """Copy what a guest sees in an image, with its backing files, into an existing volume.

        `report` gets the percentage that is done, at least every second; when it raises, the copy stops at once, and
        the volume holds part of the image.

        Raises:
            NoSpace: the volume's file system is full.
            FileFailed: qemu-img's reason.
            HostCannot: qemu-img is not installed.
        """

    def resize_volume(self, pool: str, name: str, capacity_bytes: int) -> VolumeInfo:
        """Grow a volume that no running VM uses, or any volume of a logical pool; LVM rounds the size up."""

    def create_private_volume(self, pool: str, name: str, data: bytes) -> VolumeInfo:
        """Create a raw volume of mode 0600 with these bytes; an existing name is an error. A failure leaves none."""

    def send_volume(self, pool: str, name: str, target_uri: str, report: Callable[[float], None]) -> None:
        """Send the content of a volume that nothing uses to the volume of the same pool and name on another host.

        `report` as for `copy_image`; when it raises, that volume holds part of the content.
        """

    def read_private_volume(self, pool: str, name: str) -> bytes:
        """Return the content of a volume that `create_private_volume` made; libvirt's error 50 if it is missing."""

    def rewrite_private_volume(self, pool: str, name: str, data: bytes) -> None:
        """Replace its content by bytes of the same number; a running VM may have it open to read."""

    def remove_volume(self, pool: str, name: str) -> None:
        """Delete a volume; a missing one is no error. A small one of a logical pool (a seed) is overwritten first."""

    def resolve(self, path: str) -> ResolvedPath | None:
        """Return where the path of a file or directory leads, and whether root alone decides that; None if nowhere."""

    def image(self, path: str) -> ImageInfo | None:
        """Inspect an image file without changing it; None when there is no such file."""

    def list_files(self, directory: str) -> tuple[str, ...]:
        """Return the paths of a directory's files, sorted; empty where the directory cannot be read."""

    def file_system_bytes(self, directory: str) -> int | None:
        """Return the size of the file system that a directory is on, or would be created on; None where unknown."""

    def image_files(self, paths: Collection[str], *, reachable: Collection[str] | None = None) -> dict[str, ImageFile]:
        """Return, by path, the files that paths lead to, with their backing files; without those that cannot be read.

        Runs no program.

        With `reachable`, reads only what cannot hang: files on this host's own disks, and on the servers that hold one
        of the `reachable` files, which are opened anyway. It does not read the content of devices then.
        """


class VolumeBin(Protocol):
    """Where disks that are deleted wait: the bin of each storage pool. Raises the same errors as Storage.

    Each call works in an active pool. Nothing here follows a link or changes a file that is not an entry of the bin.
    """

    def prepare(self, pool: str) -> None:
        """Make the bin of a pool if it has none; nothing else changes.

        Raises:
            Refused: volumes of this kind of pool cannot be renamed, or the bin is not root's alone.
            HostCannot: LVM's programs are missing.
        """

    def move_in(self, pool: str, volume: str, entry: str) -> None:
        """Rename a volume to its entry in the bin, in one call; a missing one is no error.

        Raises:
            Refused: the volume is not a file, or the entry exists already.
        """

    def volumes(self, pool: str) -> tuple[BinnedVolume, ...]:
        """Return what is in the bin of a pool, by name; also what vgpuctl did not put there."""

    def move_out(self, pool: str, entry: str, volume: str) -> str:
        """Make an entry a volume of this name again, and return its path.

        Raises:
            Exists: the name is taken.
            NotFound: there is no such entry.
        """

    def delete(self, pool: str, entry: str) -> None:
        """Delete an entry for good; a missing one is no error."""
