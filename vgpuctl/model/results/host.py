# SPDX-License-Identifier: Apache-2.0
"""The whole host: the `data` of the commands that check it, set it up and compare it with host.yaml.

Other hosts, simulated hosts and the shell's completion are here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from vgpuctl.model.results import ABSENT, Absent
from vgpuctl.value import Value


class LogEntryResult(Value):
    """A command that changed this host, or tried to. `time`: when it ended, in UTC.

    `user`: the person: who logged in, or who called sudo. `uid`: the user that the command ran as, 0 with sudo.
    `arguments`: the command line. `spec`: the fields of the spec file that it read, as JSON; null if it read none.
    `vms`, `gpus`: what it changed or was asked to change, and what its error names, by name and address. `result`: ok,
    or the error's code; `error`: its message. `left`: what the command left behind.
    """

    time: str
    user: str | None
    uid: int
    command: str
    arguments: str
    spec: str | None
    vms: tuple[str, ...]
    gpus: tuple[str, ...]
    result: str
    exit_status: int
    changed: bool
    duration_seconds: float
    error: str | None
    left: tuple[str, ...]


class FindingResult(Value):
    """A problem, and what reconcile-host does about it."""

    kind: str
    what: str
    action: str


class ReconcileResult(Value):
    """What reconcile-host found and did, or would do in a dry run."""

    findings: tuple[FindingResult, ...]


class CheckResult(Value):
    """The result of one check. `evidence`: the values seen; `fix`: a command or a sentence.

    `explains`: the error codes, and the `check` facts of errors, that make the check run by itself.
    """

    id: str
    title: str
    looks_at: str
    verdict: Annotated[str, "ok", "warn", "fail", "unknown", "not-applicable"]
    evidence: tuple[str, ...]
    fix: str | None
    explains: tuple[str, ...]


class DoctorFindingResult(Value):
    """A problem that the doctor adds to the error of a failed command, in its fact `doctor`."""

    id: str
    verdict: str
    evidence: tuple[str, ...]
    fix: str | None


class DoctorResult(Value):
    """The verdict on this host is its worst check's; with "fail" the exit status is 6."""

    verdict: Annotated[str, "ok", "warn", "fail", "unknown", "not-applicable"]
    checks: tuple[CheckResult, ...]


class RestoredResult(Value):
    """A GPU that was set up again, or a VM or vGPU of host.yaml whose devices were recreated.

    `kind`: `file` is host.yaml itself, which could not be read.
    """

    kind: Annotated[str, "gpu", "vm", "vgpu", "file"]
    name: str
    carriers: tuple[str, ...]


class NotRestoredResult(RestoredResult):
    """What could not be restored, and why: an entry of the fact `failed`."""

    code: str
    message: str
    hint: str | None


class RestoreResult(Value):
    """What restore-host created, or would create. `complete`: how many lacked nothing.

    `started`: autostart VMs that restore-host started, because their GPUs were not ready when libvirt started.
    """

    restored: tuple[RestoredResult, ...]
    complete: int
    started: tuple[str, ...]


class BroughtResult(Value):
    """The vgpuctl that was copied to the host, or would be; `was`: the previous version, null for none."""

    version: str
    was: str | None


class UninstalledResult(Value):
    """What uninstall-host removed. `kept`: files that were changed by hand, and stay."""

    files: tuple[str, ...]
    kept: tuple[str, ...]


class InstalledResult(UninstalledResult):
    """What install-host installed. `brought`: the vgpuctl that --deb installed, if any."""

    brought: BroughtResult | Absent = ABSENT


class HostGpuResult(Value):
    """A GPU's entry in host.yaml, or the entry that describes it; null if not set. `scheduler` as in host.yaml."""

    mode: str | None
    vfs: int | None
    cordoned: bool | None
    scheduler: Mapping[str, object] | None
    profiles: tuple[str, ...] | None
    reserved_for: tuple[str, ...] | None
    mig: Literal["off"] | tuple[str, ...] | Mapping[str, int] | None
    mixed_size: bool | None
    compute_partition: str | None
    memory_partition: str | None
    reason: str | None
    vf_memory: str | None = None


class DifferenceResult(Value):
    """A key that is not as configured. Values are as in host.yaml, None for nothing."""

    key: str
    wanted: object
    is_: object


class GpuDifferenceResult(Value):
    """A GPU of host.yaml, its state and its entry. `refused`: why it cannot be changed now, null if it can."""

    address: str
    model: str
    before: HostGpuResult
    after: HostGpuResult
    differences: tuple[DifferenceResult, ...]
    steps: tuple[str, ...]
    refused: str | None


class RemovedResult(Value):
    """An entry of host.yaml that is removed, like `gpus.A16`, or some of its keys; `keys` has the removed values."""

    entry: str
    keys: Mapping[str, object]


class HostDifferenceResult(Value):
    """What apply did or would do. `settings`: differences in other sections; `removed`: removed entries."""

    gpus: tuple[GpuDifferenceResult, ...]
    settings: tuple[DifferenceResult, ...]
    removed: tuple[RemovedResult, ...]


class HostTextResult(Value):
    """A host.yaml."""

    text: str


class MonitoringFileResult(Value):
    """A file for Prometheus, Alertmanager, Grafana or kube-prometheus. `name`: as in `monitoring --print`."""

    name: str
    text: str


class ImportedResult(HostTextResult):
    """A host.yaml made from files of another program. `left_out`: settings it cannot express, with place and reason."""

    source: Annotated[str, "mdevctl", "vgpu-device-manager", "mig-parted"]
    left_out: tuple[str, ...]


class ImportedVmResult(Value):
    """A VM of another hypervisor as a VM spec. `source`: the format of its file; `file`: the file.

    `spec`: the spec's fields; `text`: the same as YAML, which `ensure-vm -f` takes. `commands`: what converts its disks
    into those that the spec names, for a shell in the directory where `import-vm` ran. `left_out`: what the spec cannot
    express, with place and reason. `notes`: what was assumed, and what is to be done before the commands.
    """

    name: str
    source: str
    file: str
    spec: Mapping[str, object]
    text: str
    commands: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


class ImportedVmsResult(Value):
    """VMs of other hypervisors; `text` has the specs of all of them, one YAML document each.

    `host_lines`: what the files say about the other host's GPUs, as lines for host.yaml. `left_out`: what belongs to no
    VM, with place and reason.
    """

    text: str
    vms: tuple[ImportedVmResult, ...]
    host_lines: tuple[str, ...]
    left_out: tuple[str, ...]


class ScenarioResult(Value):
    """A built-in simulated host."""

    host: str
    description: str


class SimResult(Value):
    """A simulated host that was reset."""

    host: str


class RebootedResult(SimResult):
    """A simulated host that was rebooted.

    `boot_unit`: whether the unit of install-host ran, and could create everything again. `restored`: what it created;
    `failed`: what it could not create.
    """

    boot_unit: Literal["done", "failed", "not-enabled"]
    restored: tuple[RestoredResult, ...] = ()
    failed: tuple[NotRestoredResult, ...] = ()


class AgentResult(Value):
    """The host agent has ended. `socket`: the path at which it answered."""

    socket: str


class CompletionResult(Value):
    """A shell's completion script."""

    shell: str
    script: str


class GuestHelperFileResult(Value):
    """The helper for guests with this system, linux or windows: a program in one file."""

    os: str
    program: str


class HostAnswerResult(Value):
    """One host. `document`: what vgpuctl there printed; if it printed none, an error document of the same form."""

    host: str
    address: str
    exit_status: int
    seconds: float
    document: object


class HostsResult(Value):
    """Every selected host, in the order of the command line, including those that failed."""

    command: str
    hosts: tuple[HostAnswerResult, ...]
