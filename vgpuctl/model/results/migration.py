# SPDX-License-Identifier: Apache-2.0
"""What two hosts tell each other about a VM that moves between them, and what `migrate-vm` returns."""

from __future__ import annotations

from typing import Annotated

from vgpuctl.value import Value


class MigrationReasonResult(Value):
    """Why a VM cannot move, or what may surprise. `host`: which side says so. `hint`: what helps."""

    host: str
    what: str
    hint: str | None = None


class MigrationHostResult(Value):
    """One side. `driver`: the version of the GPUs' driver, `distribution`: as os-release has it (`ubuntu 24.04`).

    `cpu`: the CPU model's name. `tls_directory`: where libvirt takes the certificates for QEMU's migration from, and
    `missing_certificates`: those that this side needs and that are not there. What is null is not known.
    """

    name: str
    machine_id: str
    arch: str
    kernel: str | None = None
    distribution: str | None = None
    libvirt_version: str | None = None
    qemu_version: str | None = None
    driver: str | None = None
    cpu: str | None = None
    tls_directory: str | None = None
    missing_certificates: tuple[str, ...] = ()


class MigratingVgpuResult(Value):
    """One vGPU, or whole GPU, of a VM that is to move, as its source has it. What is null is not known.

    `state_bytes`: how much its device has to send now. `read_bytes_per_second`: how fast its driver reads that.
    `metadata`: NVML's description of the vGPU, base64: the target's NVML compares it with its GPU's. `pci_id`: the
    GPU's vendor and device id (`10de:2331`).
    """

    carrier: str
    backend: str
    profile: str | None
    gpu: str
    gpu_model: str
    framebuffer_mib: int | None = None
    scheduler: str | None = None
    has_ecc: bool | None = None
    can_migrate: bool | None = None
    state_bytes: int | None = None
    read_bytes_per_second: int | None = None
    metadata: str | None = None
    pci_id: str | None = None


class MigratingDiskResult(Value):
    """One disk of a VM that is to move. `device`: its name in the guest (vda). `made`: vgpuctl made it for the VM.

    `is_shared`: its file system is one that other hosts have, too. `base`: what it is a linked clone of. `content`: of
    a seed, base64.
    """

    device: str
    kind: str
    path: str
    format: str | None
    size_bytes: int | None
    is_shared: bool
    is_read_only: bool
    made: bool
    pool: str | None = None
    volume: str | None = None
    base: str | None = None
    content: str | None = None


class MigrationOfferResult(Value):
    """A VM as its source offers it. `definition`: its XML, without secrets. `reasons`: why it cannot leave now.

    `id`: of this move; both hosts record it. `signature`: by the SSH host key of the source, where an account asks.
    """

    id: str
    name: str
    uuid: str
    state: str
    memory_mib: int
    vcpus: int
    definition: str
    host: MigrationHostResult
    vgpus: tuple[MigratingVgpuResult, ...]
    disks: tuple[MigratingDiskResult, ...]
    reasons: tuple[MigrationReasonResult, ...] = ()
    warnings: tuple[MigrationReasonResult, ...] = ()
    signature: str | None = None


class PlacedVgpuResult(Value):
    """Where one of its vGPUs goes. `from_carrier`: its carrier on the source.

    `write_bytes_per_second`: how fast the driver there takes its state.
    """

    from_carrier: str
    carrier: str
    profile: str | None
    gpu: str
    function: str
    write_bytes_per_second: int | None = None


class MigrationPlaceResult(Value):
    """What the target has made ready, or would. `record`: the VM's record there. `reasons`: why it cannot come.

    `copied_disks`: the disks (vda) for which it has made empty files. `signature`: by the SSH host key of the target,
    where an account asks. `definition_sha256`: of the definition that was offered.
    """

    id: str
    name: str
    uuid: str
    host: MigrationHostResult
    vgpus: tuple[PlacedVgpuResult, ...]
    record: str
    definition_sha256: str = ""
    copied_disks: tuple[str, ...] = ()
    reasons: tuple[MigrationReasonResult, ...] = ()
    warnings: tuple[MigrationReasonResult, ...] = ()
    signature: str | None = None


class MigrationStateResult(Value):
    """What one host has of a VM that moves. `exists` false: no VM of this uuid that could run; then the rest is null.

    `stop_reason`: why it is off, as libvirt says. `id`, `role`, `peer`, `peer_machine_id`: of the move that its record
    names; null: none. `is_migrating`: libvirt sends it to another host now. `is_copy`: its record is that of another
    host. `is_removing`: it is half removed. `is_offline`: it is off while it moves.
    """

    host: str
    machine_id: str
    name: str
    uuid: str | None
    exists: bool
    state: str | None = None
    stop_reason: str | None = None
    id: str | None = None
    role: str | None = None
    peer: str | None = None
    copies_disks: bool = False
    is_migrating: bool = False
    is_copy: bool = False
    peer_machine_id: str | None = None
    is_removing: bool = False
    is_offline: bool = False

    @property
    def seen(self) -> str | None:
        """What a decision is made from: it must be the same when that is carried out. None: there is no move."""
        return None if self.role is None else f"{self.role} {self.state}"


class SentVmResult(Value):
    """A VM whose memory was sent. `downtime_ms`: how long it has stood still as QEMU counts, until all had come."""

    name: str
    uuid: str
    seconds: float
    downtime_ms: int | None = None
    sent_bytes: int | None = None
    max_downtime_ms: int | None = None


class FinishedMigrationResult(Value):
    """What became of a move on one host: `runs-here`, `runs-there`, or `nothing` where nothing of it was left.

    `lets-go`: it is off here, and goes on there; all of it is here until that is done.
    """

    host: str
    name: str
    outcome: Annotated[str, "runs-here", "runs-there", "lets-go", "nothing"]


class EndedMigrationResult(Value):
    """Where a VM goes on whose move was interrupted: on its `source`, on the `target`, or `none`: there was no move.

    `changed`: something was done for that. `asked_both` false: the caller knew it, and `not_asked` is the other host.
    `state`: of the VM where it goes on, null: that host was not asked. `removed`: what is removed from the other host,
    step by step. `lost_on`: the host that has its running state, or may have it, which is lost by this; null: none.
    """

    name: str
    uuid: str | None
    source: str
    target: str
    outcome: Annotated[str, "source", "target", "none"]
    changed: bool
    asked_both: bool = True
    not_asked: str | None = None
    state: str | None = None
    removed: tuple[str, ...] = ()
    lost_on: str | None = None


class EstimateResult(Value):
    """How long a VM will stand still, in ms, as far as drivers say: the state of its devices, by the slowest part.

    `parts`: what it was reckoned from.
    """

    downtime_ms: int | None
    parts: tuple[str, ...] = ()


class MigratedVmResult(Value):
    """A VM that moved, or would. `is_live`: it goes on running. `is_running`: it runs on the target, or would.

    `seconds`: from the first to the last step. `paused_ms`: how long it stood still. `max_downtime_ms`: the limit for
    that, at its end. `cautions`: what may surprise.
    """

    name: str
    uuid: str
    source: str
    target: str
    is_live: bool
    is_running: bool
    vgpus: tuple[PlacedVgpuResult, ...]
    copied_disks: tuple[str, ...]
    estimate: EstimateResult
    cautions: tuple[MigrationReasonResult, ...] = ()
    seconds: float | None = None
    paused_ms: int | None = None
    max_downtime_ms: int | None = None
