# SPDX-License-Identifier: Apache-2.0
"""The outside worlds as small protocols: the only way from the program to a host, real or simulated.

Imported for types alone: a Protocol is costly to make.

`World` (`model.world`) bundles one host's seams and is handed in by whoever starts the program. The real half lives in
`vgpuctl.host`, the simulated one in `vgpuctl.sim`; neither knows the other, and contract tests hold them equal.

Two rules hold for every implementation: a call that changes the host, and every libvirt call, raises
AssertionError while this process holds the host lock (`World.claims.held`), except writing claims; and what a
call returns was read now, not remembered.

Size: one protocol for each outside world, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from vgpuctl.model.partition import Span
from vgpuctl.model.records import (
    AuditEntry,
    ClaimsRead,
    CommandResult,
    DomainLeftovers,
    DomainRecord,
    Ecc,
    FilePermissions,
    Glance,
    GuestAddress,
    Holder,
    HypervisorCapabilities,
    HypervisorStatus,
    ImageRecord,
    NetworkRecord,
    NvmlGpu,
    NvmlGuest,
    NvmlStatus,
    PoolRecord,
    Removed,
    VolumeRecord,
)
from vgpuctl.model.scheduler import SchedulerSpec
from vgpuctl.model.vm import Claim, DrainedVm, ProcessId, StuckWrite, UnfinishedFile, WorkedOn


class Sysfs(Protocol):
    """The host's file tree below its root: /sys, /proc, /dev names, /etc/vgpuctl. Paths are absolute.

    Every method raises OSError with the kernel's errno.
    """

    def read(self, path: str) -> str:
        """Return the whole file as text (undecodable bytes replaced)."""

    def listdir(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory."""

    def readlink(self, path: str) -> str:
        """Return a symbolic link's text; callers mostly want its last component."""

    def permissions(self, path: str) -> FilePermissions:
        """Return whose a file or directory is and who may do what; a link is followed."""

    def write(self, path: str, text: str) -> None:
        """Write `text` in one write call (a plain write: for creating, which the kernel never parks)."""

    def write_parked(self, path: str, text: str, *, gpu: str, deadline_seconds: float) -> None:
        """Write in a child process that may be parked in the kernel, and wait at most the deadline.

        For removing and unbinding. The child is never signalled.

        Raises:
            OSError: the kernel refused it.
            Stuck: the deadline passed; the write is recorded below /run/vgpuctl/stuck and goes on.
        """


class Nvml(Protocol):
    """NVIDIA's management library; every answer may be missing."""

    def status(self) -> NvmlStatus:
        """Say whether NVML answers, and if not why. Never raises."""

    def gpu(self, address: str) -> NvmlGpu | None:
        """Return what NVML knows of a GPU by normal PCI address; None when it is not to be had."""

    def ecc(self, address: str) -> Ecc | None:
        """Say whether a GPU's memory has error correction; None where it has none or that is not told."""

    def guests(self, address: str) -> tuple[NvmlGuest, ...] | None:
        """Return the vGPUs of a GPU that VMs have, with the driver in each guest; None where that is not told."""

    def placements(self, address: str) -> Mapping[int, tuple[Span, ...]]:
        """Return where each vGPU type may be with mixed sizes, by its id, also while they are off.

        Types of which that is not told, as with MIG, are left out.
        """

    def set_scheduler(self, address: str, spec: SchedulerSpec, gi_id: int | None = None) -> None:
        """Have a GPU's vGPUs scheduled so, until its driver is loaded again; or those of one GPU instance, while it is.

        Raises:
            NvmlFailed: NVML refused it or cannot be asked; `nvml_code` in its facts is NVML's number.
        """

    def set_mig(self, address: str, *, enabled: bool) -> None:
        """Turn MIG on or off. Where the driver does that at its next reset only, it is pending then, and no error.

        Raises:
            NvmlFailed: as `set_scheduler`.
        """

    def make_instance(self, address: str, profile_id: int, start: int) -> int:
        """Make a GPU instance whose first memory slice is `start`, and all of it a compute instance; return its id.

        Raises:
            NvmlFailed: as `set_scheduler`.
        """

    def destroy_instance(self, address: str, gi_id: int) -> None:
        """Destroy a GPU instance with its compute instances.

        Raises:
            NvmlFailed: as `set_scheduler`; while a vGPU is in it, NVML says that it is in use.
        """

    def set_mixed_size(self, address: str, *, enabled: bool) -> None:
        """Let vGPUs of several sizes be on a GPU or not (NVML's heterogeneous mode), until its VFs are set up again.

        Raises:
            NvmlFailed: as `set_scheduler`.
        """


class Removal(Protocol):
    """What a running guest does with a device that it was asked for."""

    def wait(self, deadline_seconds: float) -> Removed:
        """Wait until libvirt tells how it ended, at most so long. What is true is what the live XML then says."""


class Hypervisor(Protocol):
    """libvirt's domains and networks. Domains are addressed by uuid, except where a name is looked up.

    Every method raises LibvirtFailed (facts: libvirt_code, call), or HostCannot with check="libvirt" when
    libvirt does not answer.
    """

    def status(self) -> HypervisorStatus:
        """Say whether libvirt answers, and if not why. Never raises."""

    def capabilities(self) -> HypervisorCapabilities:
        """Return what domains may use on this host."""

    def domains(self) -> tuple[DomainRecord, ...]:
        """Return every domain, sorted by name. One that vanishes while listing is left out."""

    def find_domain(self, name_or_uuid: str) -> DomainRecord | None:
        """Return one domain by exact name or uuid, or None."""

    def define(self, xml: str) -> DomainRecord:
        """Define a new domain with VIR_DOMAIN_DEFINE_VALIDATE and return it as libvirt re-reads it."""

    def undefine(self, uuid: str) -> None:
        """Undefine a stopped domain with its NVRAM, TPM, managed save, snapshot and checkpoint metadata."""

    def set_promise(self, uuid: str, xml: str | None) -> None:
        """Set or delete (None) the element of namespace urn:vgpuctl:1 in the domain's config metadata."""

    def leftovers(self, uuid: str) -> DomainLeftovers:
        """Return what undefine would remove beside the definition."""

    def start(self, uuid: str) -> None:
        """Start a defined domain; returns when libvirt says it runs."""

    def shutdown(self, uuid: str) -> None:
        """Ask the guest to power off (ACPI); returns at once."""

    def destroy(self, uuid: str) -> None:
        """Pull the plug: returns when the domain is off. A domain that is off already is no error."""

    def wait_stopped(self, uuid: str, deadline_seconds: float) -> bool:
        """Wait until the domain is off or gone; False when the deadline came first."""

    def network(self, name: str) -> NetworkRecord | None:
        """Return one network by name, or None."""

    def definition(self, uuid: str) -> str:
        """Return a domain's config with the secrets that looking hides (a VNC password): only to define it again."""

    def redefine(self, uuid: str, xml: str) -> DomainRecord:
        """Replace an existing domain's config by `xml`, validated, and return it as libvirt re-reads it.

        Error 42 when there is no such domain, 9 when `xml` gives it another name.
        """

    def attach_device(self, uuid: str, xml: str, live: bool) -> None:
        """Add a device to the domain's config and, with `live`, to the running domain: to both or to neither.

        Error 1 when no PCI port is free for it, 67 when its alias is there already, 99 when its mdev does not exist.
        """

    def detach_device(self, uuid: str, alias: str, *, live: bool, config: bool) -> None:
        """Take the device with this alias from the config and ask the running guest to give it up.

        A guest gives a device up when it likes: it is gone when the live XML lacks it. Error 9 when the guest
        refuses, 1 when there is no such device; then the config keeps it too.
        """

    def removal(self, uuid: str, alias: str) -> AbstractContextManager[Removal]:
        """Hear what becomes of a running domain's device, from the beginning of the block on.

        `detach_device` is called inside the block, so that no answer of the guest is missed. Error 42 when there is
        no such domain.
        """

    def guest_addresses(self, uuid: str, source: str) -> tuple[GuestAddress, ...] | None:
        """Return a running guest's addresses by `agent`, `lease` or `arp`; None when that source does not answer.

        A domain that is off is libvirt's error 55.
        """

    def graphics_passwords(self, uuid: str) -> frozenset[str] | None:
        """Return the kinds of graphics ("vnc") that ask for a password, never a password; None: not allowed to see."""


class Storage(Protocol):
    """libvirt's storage pools, and images that people name by path. Errors as Hypervisor's."""

    def pool(self, name: str) -> PoolRecord | None:
        """Return one pool by name, or None."""

    def pools(self) -> tuple[PoolRecord, ...]:
        """Return every pool, sorted by name."""

    def volumes(self, pool: str, *, refresh: bool = True) -> tuple[VolumeRecord, ...]:
        """Return an active pool's volumes, sorted by name; one that vanishes or cannot be read is left out.

        Without `refresh` those that libvirt knows already: a refresh opens every one.
        """

    def make_pool(self, name: str, path: str) -> None:
        """Define, build, start and autostart a directory pool; the directory may exist."""

    def start_pool(self, name: str) -> None:
        """Start an inactive pool."""

    def remove_pool(self, name: str) -> None:
        """Stop and undefine a pool; its directory and files stay."""

    def volume(self, pool: str, name: str) -> VolumeRecord | None:
        """Return one volume after refreshing the pool, or None."""

    def make_volume(
        self,
        pool: str,
        name: str,
        capacity_bytes: int,
        base: str | None = None,
        base_format: str | None = None,
    ) -> VolumeRecord:
        """Make a thin qcow2 volume, exclusively: a name that exists is an error. `base`: a linked clone."""

    def put_volume(self, pool: str, name: str, data: bytes) -> VolumeRecord:
        """Make a raw volume of mode 0600 that holds these bytes, exclusively; where that fails none is left."""

    def remove_volume(self, pool: str, name: str) -> None:
        """Delete a volume; one that is gone already is no error."""

    def image(self, path: str) -> ImageRecord | None:
        """Look at an image file without changing it; None when there is none."""

    def files_in(self, directory: str) -> tuple[str, ...]:
        """Return the paths of a directory's files, sorted; none where it cannot be read."""

    def file_system_bytes(self, directory: str) -> int | None:
        """Return how large the file system is that a directory is on, or would be made on; None where unknown."""

    def glance(self, path: str, *, near: Collection[str] | None = None) -> Glance | None:
        """Return which file a path leads to, and the file below it; None where it cannot be read. Runs no program.

        With `near` only what cannot hang is looked at: files of this host's own disks, and of the servers that have one
        of the `near` files, which are opened anyway; of devices not the content.
        """


class Processes(Protocol):
    """The host's processes."""

    def this(self) -> ProcessId:
        """Return the calling process."""

    def command(self) -> str:
        """Return the calling command line, without secrets."""

    def alive(self, process: ProcessId) -> bool:
        """Say whether exactly this process still lives."""

    def holders(self, nodes: tuple[str, ...]) -> tuple[Holder, ...]:
        """Return who has any of these device nodes (/dev/vfio/7, /dev/dri/card1) open.

        Raises:
            PermissionError: not every process could be looked at; never treat that as "nobody".
        """


class Claims(Protocol):
    """The claims, the stuck writes and the host lock below /run/vgpuctl."""

    @property
    def held(self) -> bool:
        """Whether this process holds the host lock now."""

    def lock(self, wait_seconds: float) -> AbstractContextManager[None]:
        """Take the host lock.

        Raises:
            Locked: after `wait_seconds`, naming the holder's pid and command.
        """

    def turn(self, gpu: str, wait_seconds: float) -> AbstractContextManager[None]:
        """Wait for the turn to make a vGPU on a GPU and move it to its place, as one; also among threads.

        Not the host lock: devices are written in it.

        Raises:
            Locked: after `wait_seconds`, naming whose turn it is.
        """

    def all(self) -> tuple[Claim, ...]:
        """Return every readable claim, sorted by carrier. Errors as `read`."""

    def read(self, carriers: frozenset[str] | None = None) -> ClaimsRead:
        """Read every claim once, or those on `carriers` alone.

        Raises:
            OSError: they cannot be listed, as without root; never treat that as "nothing is claimed".
        """

    def add(self, claim: Claim) -> None:
        """Write a claim with O_EXCL.

        Raises:
            FileExistsError: the carrier is claimed already; its `filename` is the claim's file.
        """

    def renew(self, claim: Claim) -> None:
        """Write a claim over its VM's own in one step, so that a kill leaves one of the two; a missing one is written.

        Raises:
            FileExistsError: another VM has claimed the carrier, or for whom cannot be read.
        """

    def remove(self, carrier: str, vm_uuid: str) -> None:
        """Remove a claim if it still is this VM's; a missing one is no error."""

    def stuck(self) -> tuple[StuckWrite, ...]:
        """Return the writes still waiting in the kernel, after dropping those whose process is gone.

        Raises:
            OSError: they cannot be listed, as without root; never treat that as "none".
        """

    def drained(self) -> tuple[DrainedVm, ...]:
        """Return the VMs that were shut down for a while and have not been started again, sorted by uuid.

        Raises:
            OSError: they cannot be listed, as without root.
        """

    def note_drained(self, vm: DrainedVm) -> None:
        """Keep, until the next boot, that a VM is about to be shut down for a while.

        Raises:
            OSError: with the kernel's errno.
        """

    def forget_drained(self, vm_uuid: str, was: DrainedVm | None = None) -> None:
        """Drop that: the VM runs again, or is gone. With `was`, only while the note still is that one.

        A missing one is no error, and one that cannot be dropped neither.
        """

    def working(self) -> frozenset[str]:
        """Return the uuids of the VMs without a place that a living process works on, dropping what others left.

        Raises:
            OSError: they cannot be listed, as without root.
        """

    def note_working(self, work: WorkedOn) -> None:
        """Keep, until it is forgotten or its process has ended, that a process works on a VM.

        Raises:
            OSError: with the kernel's errno.
        """

    def forget_working(self, vm_uuid: str) -> None:
        """Drop that. A missing one is no error, and one that cannot be dropped neither."""

    def set_mode(self, mode: int) -> None:
        """Set the permission bits of /run/vgpuctl itself.

        Raises:
            OSError: with the kernel's errno.
        """


class Unfinished(Protocol):
    """The files that processes which are gone were writing, in every directory where vgpuctl writes."""

    def all(self) -> tuple[UnfinishedFile, ...]:
        """Return them, by directory and name.

        Raises:
            OSError: a directory cannot be listed.
        """

    def remove(self, file: UnfinishedFile) -> None:
        """Remove one while it still is such a file; a missing one is no error.

        Raises:
            OSError: with the kernel's errno.
        """


class Scratch(Protocol):
    """Bytes that may be lost at any time. No method raises."""

    def read(self, name: str) -> bytes | None:
        """Return what was kept under a name, or None."""

    def keep(self, name: str, data: bytes) -> None:
        """Keep bytes under a name if that can be done."""


class Clock(Protocol):
    """Time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps."""

    def pause(self, seconds: float) -> None:
        """Let a short time pass between two looks at a condition."""


class Audit(Protocol):
    """Where the host keeps who changed it, and how that ended. No method raises."""

    def record(self, entry: AuditEntry) -> None:
        """Keep one entry if that can be done."""


class KernelLog(Protocol):
    """What the kernel, its drivers and systemd's services wrote since the boot. No method raises."""

    def lines(self, *containing: str) -> tuple[str, ...] | None:
        """Return the kernel's lines that contain one of these texts, oldest first; None: the log may not be read."""

    def service_lines(self, service: str) -> tuple[str, ...] | None:
        """Return the last lines that a service wrote, and systemd of it, oldest first; None as `lines`."""


class HostFile(Protocol):
    """The file /etc/vgpuctl/host.yaml, to be replaced as a whole. Its last ten versions before are kept beside it."""

    def read(self) -> str | None:
        """Return the file's text, None when there is none; raises OSError."""

    def kept(self, number: int) -> str | None:
        """Return the text of a version before, 1 being the newest; None when there is none; raises OSError."""

    def replace(self, text: str, was: str | None, *, taken_back: bool = False) -> None:
        """Put a new text in the file's place at once, with its owner and mode; `was` is what it was made from.

        `was` becomes the newest of the versions before. With `taken_back` it was a failed command's and does not, and
        `text` is none of them any more.

        Raises:
            Busy: the file is not `was` any more: somebody else changed it.
            OSError: it cannot be written (EROFS: /etc is read-only).
        """


class VendorCommands(Protocol):
    """Commands that come with a GPU's driver."""

    def sriov_manage(self, flag: str, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run NVIDIA's sriov-manage with `-e` (VFs on) or `-d` (off) for one GPU.

        Raises:
            FileNotFoundError: it is not installed: only NVIDIA's vGPU host driver brings it.
            OSError: it could not be started.
            Stuck: it did not end in time, or two signals came; it is recorded below /run/vgpuctl/stuck and goes on.
        """

    def reset_gpu(self, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run `nvidia-smi --gpu-reset` for one GPU, which no NVML call does.

        Raises:
            FileNotFoundError, OSError, Stuck: as `sriov_manage`.
        """
