# SPDX-License-Identifier: Apache-2.0
"""The ports to /run/vgpuctl: claims, drained VMs, VMs in progress, stuck writes, the host lock, and operations.

An operation is work that is done on this host now, in this process or in another.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from vgpuctl.model.port_values import ClaimList
from vgpuctl.model.vm import Claim, DrainedVm, Operation, StuckWrite, VmInProgress
from vgpuctl.value import Value


class Claims(Protocol):
    """What vgpuctl keeps in /run/vgpuctl until the next boot.

    A claim is on a carrier: an mdev, a VF or a whole function, whatever carries a vGPU.
    """

    @property
    def is_locked(self) -> bool:
        """Whether the calling thread holds the host lock now."""

    def lock(self, wait_seconds: float) -> AbstractContextManager[None]:
        """Take the host lock.

        Raises:
            Locked: after `wait_seconds`, naming the holder's pid and command.
        """

    def gpu_creation_lock(self, gpu: str, wait_seconds: float) -> AbstractContextManager[None]:
        """Take the GPU's creation lock: only its holder creates vGPUs on this GPU and sets their placements.

        Unlike under the host lock, writes to devices are allowed while it is held.

        Raises:
            Locked: after `wait_seconds`, naming the holder.
        """

    def all(self) -> tuple[Claim, ...]:
        """Return every readable claim, sorted by carrier. Raises the same errors as `read`."""

    def read(self, carriers: frozenset[str] | None = None) -> ClaimList:
        """Read every claim once, or only those on `carriers`.

        Raises:
            OSError: the claims cannot be listed, for example without root; never treat that as "nothing is claimed".
        """

    def add(self, claim: Claim) -> None:
        """Create a claim's file with O_EXCL.

        Raises:
            FileExistsError: the carrier is already claimed; the error's `filename` is the claim's file.
        """

    def replace(self, claim: Claim) -> None:
        """Replace the VM's own claim atomically: if the process is killed, the old or the new claim remains.

        A missing claim is created.

        Raises:
            FileExistsError: another VM has claimed the carrier, or the existing claim cannot be read.
        """

    def remove(self, carrier: str, vm_uuid: str) -> None:
        """Remove a claim if it still belongs to this VM; a missing claim is no error."""

    def stuck_writes(self) -> tuple[StuckWrite, ...]:
        """Return the writes that still block in the kernel. Removes the entries of processes that have ended.

        Raises:
            OSError: they cannot be listed, for example without root; never treat that as "none".
        """

    def drained_vms(self) -> tuple[DrainedVm, ...]:
        """Return the VMs that vgpuctl shut down temporarily and has not started again, sorted by uuid.

        Raises:
            OSError: they cannot be listed, for example without root.
        """

    def add_drained_vm(self, vm: DrainedVm) -> None:
        """Record, until the next boot, that a VM is about to be shut down temporarily.

        Raises:
            OSError: with the kernel's errno.
        """

    def remove_drained_vm(self, vm_uuid: str, expected: DrainedVm | None = None) -> None:
        """Remove a VM's entry: it runs again or no longer exists. With `expected`, only if the entry equals it.

        A missing entry is no error. A failure to remove it is ignored: reconcile removes it later.
        """

    def vms_in_progress(self) -> tuple[VmInProgress, ...]:
        """Return the notes on VMs that have no claim, which would name the operation that works on them.

        Raises:
            OSError: they cannot be listed, for example without root.
        """

    def add_vm_in_progress(self, entry: VmInProgress) -> None:
        """Record that an operation works on a VM, until the entry is removed or the operation has ended.

        Raises:
            OSError: with the kernel's errno.
        """

    def remove_vm_in_progress(self, vm_uuid: str, expected: VmInProgress | None = None) -> None:
        """Remove a VM's entry; with `expected`, only if the entry equals it.

        A missing one is no error. A failure is ignored: the entry counts only while its operation lives.
        """

    def count_removal(self, uid: int, limit: int, now: float) -> bool:
        """Count that a user removes a VM now, in seconds of the monotonic clock; False after `limit` in an hour.

        Nothing is counted then. The counts last until the next boot.

        Raises:
            OSError: with the kernel's errno; nothing was counted.
        """

    def of_operation(self, operations: Operations) -> Claims:
        """Return the same claims, and the same lock; what is written there names the operation of `operations`."""

    def set_permissions(self, mode: int) -> None:
        """Set the permission bits of /run/vgpuctl itself, for `doctor --fix`.

        Raises:
            OSError: with the kernel's errno.
        """


class OperationsState(Value):
    """Which operations there were. `changed_ns`: when one last began or ended; `running`: the number of their files."""

    changed_ns: int
    running: int


class Operations(Protocol):
    """The operation that uses this `Host`, and the others on the same host.

    An operation is one command or one API request. Its claims and notes name it. It is alive while it holds the lock on
    its own file, so one process can carry out several, and each ends with its own work.
    """

    def current(self) -> Operation:
        """Return the operation that uses this `Host`. Its file is written before its first claim or note."""

    def begin(self) -> None:
        """Write the current operation's file unless that is done; the store of claims calls it before each write.

        Raises:
            OSError: with the path; the operation has not begun.
        """

    def another(self) -> Operations:
        """Return another operation on the same host, which has not begun."""

    def living(self, ids: frozenset[str | None]) -> frozenset[str | None]:
        """Return those of these operations that are alive, the current one included once it has written something.

        None, as version 0.1 left it, is no living operation. In a captured tree all are returned, None too: whether
        they live cannot be known there.

        Raises:
            OSError: the operations cannot be listed, for example without root; never treat that as "none is alive".
        """

    def killed(self, ids: frozenset[str | None]) -> frozenset[str | None]:
        """Return those of these operations that died before their end, as far as `remove_ended` has not run since.

        Raises:
            OSError: they cannot be listed.
        """

    def state(self) -> OperationsState:
        """Return what differs as soon as an operation on this host has begun or ended, whoever carries it out.

        Raises:
            OSError: the operations cannot be listed.
        """

    def end(self) -> None:
        """End the current operation; what it left on the host is for `reconcile`. The next claim begins another one."""

    def remove_ended(self) -> None:
        """Remove the files of dead operations, also of those that a claim still names: a missing file means the same.

        Raises:
            OSError: they cannot be listed.
        """
