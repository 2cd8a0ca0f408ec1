# SPDX-License-Identifier: Apache-2.0
"""The ports to what is in guests: helpers with channels and reports, QEMU guest agents, and discs with drivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from vgpuctl.model.domain_join import BlobUse, JoinSource
from vgpuctl.model.guest_driver import DriverFile
from vgpuctl.model.guest_report import GuestReport


class GuestChannel(Protocol):
    """The open channel of a running VM to a program in its guest."""

    def send(self, data: bytes) -> None:
        """Send bytes to the guest. A guest that does not read loses them, or gets them later.

        Raises:
            HostCannot, LibvirtFailed: the channel has ended.
        """

    def close(self) -> None:
        """Close it; `on_end` is not called any more. A second time does nothing."""


class GuestChannels(Protocol):
    """The channels of VMs. Only one program at a time gets what a guest sends."""

    def open(
        self, uuid: str, name: str, *, on_data: Callable[[bytes], None], on_end: Callable[[str], None]
    ) -> GuestChannel:
        """Open the channel `name` of a running VM.

        Both functions are called in threads of this port, and must not wait. `on_data` gets at most 4 KiB. `on_end`
        gets the reason once.

        Raises:
            LibvirtFailed: error 1, the VM has no such channel; 42 or 55, it does not run.
            HostCannot: libvirt does not answer, or the channel cannot be connected to.
        """


class GuestReports(Protocol):
    """The last report of each running VM's helper, kept until the next boot of the host."""

    def read(self) -> Mapping[str, GuestReport]:
        """Return the reports by the VMs' uuids; those that cannot be read are left out. Never raises."""

    def write(self, uuid: str, report: GuestReport) -> None:
        """Keep a VM's last report.

        Raises:
            OSError: it cannot be written.
        """

    def remove(self, uuid: str) -> None:
        """Remove a VM's report; a missing one is no error.

        Raises:
            OSError: it cannot be removed.
        """


class GuestHelpers(Protocol):
    """What the helpers in guests can be asked to do. Only the host agent has their channels."""

    def ask(self, uuid: str, verb: str, **values: object) -> None:
        """Have the helper in a running VM's guest carry out a request, and wait for its answer.

        Raises:
            HostCannot: the VM's helper has not reported.
            Busy: no answer came in time.
            Refused: the helper refused it; the message has its reason.
            LibvirtFailed: the channel has ended.
        """


class DriverDiscs(Protocol):
    """Files with drivers for guests, and the discs by which guests get them."""

    def read(self, path: str, max_bytes: int) -> DriverFile | None:
        """Return what is in a driver's file; None if there is none.

        Raises:
            OSError: it cannot be read, is no regular file, or larger than `max_bytes`.
        """

    def path(self, disc: str) -> str:
        """Return where a disc is, or will be, by its name."""

    def has(self, disc: str) -> bool:
        """Return whether a disc exists that nobody but its maker could change."""

    def sizes(self) -> Mapping[str, int]:
        """Return the discs by name, and their sizes in bytes.

        Raises:
            OSError: the folder cannot be read.
        """

    def delete(self, disc: str, is_used: Callable[[], bool]) -> bool:
        """Delete a disc unless it is used, as `is_used` finds out while no other process makes or deletes one.

        Returns whether it was deleted.

        Raises:
            Locked: another process has kept the folder locked.
            OSError: it cannot be deleted.
        """

    def write(self, disc: str, path: str, sha256: str, max_bytes: int) -> None:
        """Make a disc of a driver's file, unless it exists; a disc that has its name is complete.

        A VM whose definition names the disc when this begins has it, whatever `delete` does at the same time.

        Raises:
            ValueError: the file has changed since it was read.
            Locked: another process has kept the folder locked.
            OSError: it cannot be read, or the disc not written.
        """


class DomainJoins(Protocol):
    """The blobs by which guests join domains: folders with one for each computer, and programs that print one."""

    def source(self, name: str) -> JoinSource | None:
        """Return what a domain's entry is; None if there is none.

        Raises:
            ValueError: it is neither a folder nor a program, or others can change it, or read its blobs.
            OSError: it cannot be read.
        """

    def read(self, use: BlobUse, max_bytes: int, *, claimed: bool = False) -> bytes | None:
        """Return the fresh blob of a computer in a folder, else the one that this setup has claimed; None for none.

        `claimed`: only that, also where there is a fresh one.

        Raises:
            ValueError: it is no regular file, or others can read or change it, or its folder.
            OSError: it is larger than `max_bytes`, or cannot be read.
        """

    def claim(self, use: BlobUse) -> None:
        """Mark the fresh blob of a computer as used by this setup, for which alone it can be read from then on.

        Raises:
            OSError: the folder cannot be written to.
        """

    def release(self, use: BlobUse) -> None:
        """Make what this setup has claimed fresh again, unless there is a fresh one.

        Raises:
            OSError: as `claim`.
        """

    def forget(self, use: BlobUse) -> None:
        """Delete what this setup has claimed.

        Raises:
            OSError: as `claim`.
        """

    def run(self, name: str, computer: str, *, deadline_seconds: float, max_bytes: int) -> bytes:
        """Return what a program prints for a computer.

        Raises:
            ValueError: others can change the program.
            TimeoutError: it did not end in time; it was killed with what it started.
            OSError: it cannot be run, prints too much, or failed; what it complains about may have secrets.
        """


class GuestAgent(Protocol):
    """The QEMU guest agents in guests. What they answer comes from the guest, and proves nothing."""

    def command(self, uuid: str, name: str, arguments: Mapping[str, object], *, wait_seconds: int) -> object:
        """Have the QEMU guest agent of a running VM carry out one of its commands; return what that returned.

        `wait_seconds`: how long to wait for the answer. Returns None for an answer that is too long or no answer.

        Raises:
            LibvirtFailed: error 86, no guest agent answers; 74, the VM has no channel to one; 42 or 55, it does not
                run; 1, the guest agent refused, and the message has its words.
            HostCannot: libvirt does not answer.
        """
