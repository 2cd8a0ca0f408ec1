# SPDX-License-Identifier: Apache-2.0
"""The whole host: the `data` of the commands that check it, set it up and compare it with host.yaml."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from vgpuctl.cli.shapes.work import WorkShape


class FindingShape(TypedDict):
    """Something that is not as it should be, and what reconcile does about it."""

    kind: str
    what: str
    action: str


class ReconcileShape(WorkShape):
    """What reconcile found and did, or would do in a dry run."""

    findings: list[FindingShape]


class CheckShape(TypedDict):
    """What one check of this host found. `evidence`: the values seen; `fix`: a command or a sentence.

    `explains`: the error codes, and the `check` facts of errors, at which it looks by itself.
    """

    id: str
    title: str
    looks_at: str
    verdict: Literal["ok", "warn", "fail", "unknown", "not-applicable"]
    evidence: list[str]
    fix: str | None
    explains: list[str]


class DoctorShape(WorkShape):
    """The verdict on this host is its worst check's; with "fail" the exit status is 6."""

    verdict: Literal["ok", "warn", "fail", "unknown", "not-applicable"]
    checks: list[CheckShape]


class RestoredShape(TypedDict):
    """A GPU that was set up again, or a VM or vGPU of host.yaml whose devices were made again."""

    kind: Literal["gpu", "vm", "vgpu"]
    name: str
    carriers: list[str]


class RestoreShape(WorkShape):
    """What restore-host made, or would make. `complete`: how many lacked nothing.

    `started`: VMs that libvirt should have started itself, but whose GPUs were not ready when the boot let it start.
    """

    restored: list[RestoredShape]
    complete: int
    started: list[str]


class BroughtShape(TypedDict):
    """The vgpuctl that was brought to the host, or would be; `was`: the version that was there, null for none."""

    version: str
    was: str | None


class UninstalledShape(WorkShape):
    """What uninstall-host took away. `kept`: files changed by hand, left as they are."""

    files: list[str]
    kept: list[str]


class InstalledShape(UninstalledShape):
    """What install-host put in place. `brought` is there with --wheelhouse, unless that vgpuctl was there already."""

    brought: NotRequired[BroughtShape]


class HostGpuShape(TypedDict):
    """What host.yaml says, or would say, of a GPU; null for nothing. `scheduler` as it is written there."""

    mode: str | None
    vfs: int | None
    cordoned: bool | None
    scheduler: dict[str, object] | None
    profiles: list[str] | None
    reserved_for: list[str] | None
    mig: Literal["off"] | list[str] | dict[str, int] | None
    mixed_size: bool | None


DifferenceShape = TypedDict("DifferenceShape", {"key": str, "wanted": object, "is": object})
DifferenceShape.__doc__ = "A key that is not as asked for; values as host.yaml writes them."


class GpuDifferenceShape(TypedDict):
    """A GPU that host.yaml names, as it is and as it is to be. `refused`: why it cannot be so now, null when it can."""

    address: str
    model: str
    before: HostGpuShape
    after: HostGpuShape
    differences: list[DifferenceShape]
    steps: list[str]
    refused: str | None


class RemovedShape(TypedDict):
    """An entry of host.yaml that goes away, as `gpus.A16`, or some of its keys; `keys` has the values that go."""

    entry: str
    keys: dict[str, object]


class HostDifferenceShape(WorkShape):
    """What apply did or would do. `settings`: what differs in the other sections of host.yaml; `removed`: what goes."""

    gpus: list[GpuDifferenceShape]
    settings: list[DifferenceShape]
    removed: list[RemovedShape]


class HostTextShape(TypedDict):
    """A host.yaml."""

    text: str


class ImportedShape(HostTextShape):
    """A host.yaml made from files of another program. `left_out`: what it cannot say, each with its place and why."""

    source: Literal["mdevctl", "vgpu-device-manager", "mig-parted"]
    left_out: list[str]
