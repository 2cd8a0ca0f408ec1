# SPDX-License-Identifier: Apache-2.0
"""What a check is, its input, and its result.

A check declares which files it needs, so that each file is read once, and only for the requested checks. If
something cannot be read, the verdict is `unknown` with the reason, and never `ok`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from vgpuctl.config.licenses import LicenseFiles
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.port_values import DeviceUser, EccState, FilePermissions, HypervisorCapabilities, NvmlGuest
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.usage import UsageSample
from vgpuctl.value import EMPTY_MAPPING, Value

_MAX_LINES = 4


class Verdict(StrEnum):
    """The result of a check. `warn` works now and will cause trouble; `fail` does not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not-applicable"


NVIDIA_SERVICES = ("nvidia-vgpud", "nvidia-vgpu-mgr")
"""The systemd services of NVIDIA's driver for vGPUs: one reports the types and exits, the other starts each vGPU."""
SLICE_DIRECTORIES = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")
"""The cgroups of services: with cgroup v2, and in systemd's own hierarchy with v1."""


_WORST_FIRST = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN, Verdict.OK, Verdict.NOT_APPLICABLE)


class Finding(Value):
    """The result of a check. `evidence`: the observed values, with their source; `fix`: commands and sentences.

    Each command of vgpuctl runs as it stands there: it ends at a semicolon, a comma, a bracket or the end of the line.
    """

    verdict: Verdict
    evidence: tuple[str, ...] = ()
    fix: str | None = None


class PathsToRead(Value):
    """Absolute paths that a check needs: files to read, directories to list, and paths whose permissions matter.

    `configs`: directories to list, of which every file NAME.conf is read too.
    """

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()


class FileContent(Value):
    """A file: its `text`, or why it cannot be read (`problem`), or neither: it does not exist."""

    text: str | None = None
    problem: str | None = None


class FolderListing(Value):
    """A directory: its `names`, or why it cannot be listed (`problem`), or neither: it does not exist."""

    names: tuple[str, ...] | None = None
    problem: str | None = None


class Leftover(Value):
    """Something that reconcile would fix, or only report (`action`)."""

    kind: str
    description: str
    action: str


class DisplacedVm(Value):
    """A VM that is off and whose slot cannot come back. `fix`: the command that gives it another one, None if none."""

    name: str
    reason: str
    fix: str | None


class CheckContext(Value):
    """The input of all checks.

    `snapshot` None: the host could not be observed, for the reason in `problem`. `leftovers` and `capabilities` None:
    unknown, for the reason in the field after each. `claims_problem`: why the claims cannot be read, None when they
    were. `kernel_log`: messages of NVIDIA's drivers in the kernel's log; `service_logs`: messages of each of
    `NVIDIA_SERVICES`; None: that log cannot be read. `holders`: processes that have NVIDIA's driver open, None for the
    reason in `holders_problem`. By GPU: `ecc`; `guests`, the vGPUs of VMs, where NVML reports them; `partition_drift`,
    how MIG and mixed sizes differ from host.yaml; `instance_types`, every type of a GPU with MIG on. `host_file_hint`:
    what to do if host.yaml is broken. `displaced`: the VMs that need another slot. `absent_gpus`: addresses in
    host.yaml that are on no bus. `now`: seconds since 1970. `usage`: the use of the GPUs, None where it cannot be read.
    `licenses`: the folders of licenses for guests.
    """

    snapshot: Snapshot | None = None
    problem: str = "not checked"
    files: Mapping[str, FileContent] = EMPTY_MAPPING
    folders: Mapping[str, FolderListing] = EMPTY_MAPPING
    permissions: Mapping[str, FilePermissions] = EMPTY_MAPPING
    leftovers: tuple[Leftover, ...] | None = None
    leftovers_problem: str = "not checked"
    capabilities: HypervisorCapabilities | None = None
    capabilities_problem: str = "not checked"
    claims_problem: str | None = None
    kernel_log: tuple[str, ...] | None = None
    service_logs: Mapping[str, tuple[str, ...] | None] = EMPTY_MAPPING
    holders: tuple[DeviceUser, ...] | None = None
    holders_problem: str = "not checked"
    ecc: Mapping[str, EccState] = EMPTY_MAPPING
    guests: Mapping[str, tuple[NvmlGuest, ...]] = EMPTY_MAPPING
    partition_drift: Mapping[str, tuple[str, ...]] = EMPTY_MAPPING
    host_file_hint: str = ""
    displaced: tuple[DisplacedVm, ...] = ()
    absent_gpus: frozenset[str] = frozenset()
    instance_types: Mapping[str, tuple[VgpuType, ...]] = EMPTY_MAPPING
    now: float = 0.0
    usage: UsageSample | None = None
    licenses: tuple[LicenseFiles, ...] = ()

    def file(self, path: str) -> FileContent:
        """Return a file; a file that the check did not declare is a bug in the check (KeyError)."""
        return self.files[path]

    def folder(self, path: str) -> FolderListing:
        """Return a directory; KeyError as for `file`."""
        return self.folders[path]

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs; none when the host could not be observed (see `require_snapshot`)."""
        return self.snapshot.gpus if self.snapshot is not None else ()


class Check(Value):
    """One check. `explains`: the error codes, and the `check` facts of errors, that it may explain.

    `find_paths` adds paths that depend on the host. `needs_vms`, `needs_types`, `needs_leftovers`,
    `needs_capabilities`: the check needs libvirt's VMs, the GPUs' vGPU types, what reconcile would find, or what
    libvirt reports about domains. `needs_logs`, `needs_holders`, `needs_ecc`, `needs_guests`, `needs_partitions`,
    `needs_usage`: it needs the fields of `CheckContext` with these names, on hosts with NVIDIA GPUs.
    """

    id: str
    title: str
    looks_at: str
    run: Callable[[CheckContext], Finding]
    paths: PathsToRead = PathsToRead()
    find_paths: Callable[[Snapshot], PathsToRead] | None = None
    explains: tuple[str, ...] = ()
    needs_vms: bool = False
    needs_types: bool = False
    needs_leftovers: bool = False
    needs_capabilities: bool = False
    needs_logs: bool = False
    needs_holders: bool = False
    needs_ecc: bool = False
    needs_guests: bool = False
    needs_partitions: bool = False
    needs_usage: bool = False
    needs_licenses: bool = False


def ok(*evidence: str) -> Finding:
    """Return: the host is as expected."""
    return Finding(Verdict.OK, evidence)


def warn(*evidence: str, fix: str) -> Finding:
    """Return: it works now and will cause trouble."""
    return Finding(Verdict.WARN, evidence, fix)


def fail(*evidence: str, fix: str) -> Finding:
    """Return: it does not work."""
    return Finding(Verdict.FAIL, evidence, fix)


def unknown(*evidence: str, fix: str | None = None) -> Finding:
    """Return: the check could not see it, and why."""
    return Finding(Verdict.UNKNOWN, evidence, fix)


def not_applicable(*evidence: str) -> Finding:
    """Return: this host has nothing to check."""
    return Finding(Verdict.NOT_APPLICABLE, evidence)


def worst_verdict(findings: Iterable[Finding]) -> Verdict:
    """Return the verdict of several findings together: that of the worst."""
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in _WORST_FIRST if verdict in verdicts), Verdict.NOT_APPLICABLE)


def require_snapshot(check: Callable[[CheckContext, Snapshot], Finding]) -> Callable[[CheckContext], Finding]:
    """Return a check function that runs only when the host could be observed, and gives `unknown` otherwise."""

    def run(context: CheckContext) -> Finding:
        return unknown(context.problem) if context.snapshot is None else check(context, context.snapshot)

    return run


def shorten(lines: list[str]) -> tuple[str, ...]:
    """Return the first few lines, and how many more there are."""
    if len(lines) <= _MAX_LINES:
        return tuple(lines)
    return (*lines[: _MAX_LINES - 1], f"and {len(lines) - _MAX_LINES + 1} more")


def on_or_off(value: bool) -> str:
    """Return a setting as a word."""
    return "on" if value else "off"


def parse_version(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: `6.8.0-45-generic` is (6, 8, 0)."""
    numbers = []
    for part in version.strip().split("-")[0].split("."):
        number = parse_integer(part)
        if number is None:
            break
        numbers.append(number)
    return tuple(numbers)
