# SPDX-License-Identifier: Apache-2.0
"""What a check is, what it is given to look at, and what it finds.

A check says beforehand which files it needs, so that the engine reads each once, and only those of the checks that
were asked for. What cannot be read is `unknown`, with the reason, and never `ok`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from vgpuctl.model.digits import whole
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.records import Ecc, FilePermissions, Holder, HypervisorCapabilities, NvmlGuest
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.value import NOTHING, Value


class Verdict(StrEnum):
    """How a check ended. `warn` works now and will hurt; `fail` does not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not-applicable"


NVIDIA_SERVICES = ("nvidia-vgpud", "nvidia-vgpu-mgr")
"""The systemd services of NVIDIA's driver for vGPUs: one tells the types and ends, the other starts each vGPU."""


class Finding(Value):
    """What a check found. `evidence`: the values seen, with where; `fix`: a command or a sentence."""

    verdict: Verdict
    evidence: tuple[str, ...] = ()
    fix: str | None = None


class Needs(Value):
    """Absolute paths that a check looks at: files to read, directories to list, and whose permissions to see.

    `configs`: directories to list, of which every file NAME.conf is read too.
    """

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()


class Text(Value):
    """A file: its `text`, or why it cannot be read (`problem`), or neither: there is none."""

    text: str | None = None
    problem: str | None = None


class Folder(Value):
    """A directory: its `names`, or why it cannot be listed (`problem`), or neither: there is none."""

    names: tuple[str, ...] | None = None
    problem: str | None = None


class Leftover(Value):
    """Something that reconcile would mend, or only tell (`action`)."""

    kind: str
    what: str
    action: str


class Look(Value):
    """Everything that was looked at.

    `snapshot` None: the host could not be looked at, for the reason `problem`. `leftovers` and `capabilities` None:
    not known, for the reason beside them. `closed`: why the claims cannot be read, None when they were. `kernel`: what
    NVIDIA's drivers wrote into the kernel's log; `services`: what each of `NVIDIA_SERVICES` wrote; None: that log
    cannot be read. `holders`: who has NVIDIA's driver open, None for the reason beside it. By GPU: `ecc` and
    `guests`, the vGPUs that VMs have, where they are told, `drift` what of MIG and mixed sizes is not as host.yaml
    asks, `instance_types` every type of one with MIG on. `host_file_hint`: what helps where host.yaml is broken.
    """

    snapshot: Snapshot | None = None
    problem: str = "not looked at"
    files: Mapping[str, Text] = NOTHING
    folders: Mapping[str, Folder] = NOTHING
    permissions: Mapping[str, FilePermissions] = NOTHING
    leftovers: tuple[Leftover, ...] | None = None
    leftovers_problem: str = "not looked at"
    capabilities: HypervisorCapabilities | None = None
    capabilities_problem: str = "not looked at"
    closed: str | None = None
    kernel: tuple[str, ...] | None = None
    services: Mapping[str, tuple[str, ...] | None] = NOTHING
    holders: tuple[Holder, ...] | None = None
    holders_problem: str = "not looked at"
    ecc: Mapping[str, Ecc] = NOTHING
    guests: Mapping[str, tuple[NvmlGuest, ...]] = NOTHING
    drift: Mapping[str, tuple[str, ...]] = NOTHING
    host_file_hint: str = ""
    instance_types: Mapping[str, tuple[VgpuType, ...]] = NOTHING

    def file(self, path: str) -> Text:
        """Return a file; one that the check did not ask for is a mistake in the check (KeyError)."""
        return self.files[path]

    def folder(self, path: str) -> Folder:
        """Return a directory; KeyError as `file`."""
        return self.folders[path]

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs; none when the host could not be looked at (see `judged_by_host`)."""
        return self.snapshot.gpus if self.snapshot is not None else ()


class Check(Value):
    """One check. `explains`: the error codes, and the `check` facts of errors, that it may explain.

    `needs_of` adds paths that depend on what is there. `vms`, `types`, `leftovers`, `capabilities`: it needs libvirt's
    VMs, the GPUs' vGPU types, what reconcile would find, or what libvirt says of domains. `logs`, `holders`, `ecc`,
    `guests`, `partitions`: what `Look` has under these names, of hosts with NVIDIA GPUs.
    """

    id: str
    title: str
    looks_at: str
    judge: Callable[[Look], Finding]
    needs: Needs = Needs()
    needs_of: Callable[[Snapshot], Needs] | None = None
    explains: tuple[str, ...] = ()
    vms: bool = False
    types: bool = False
    leftovers: bool = False
    capabilities: bool = False
    logs: bool = False
    holders: bool = False
    ecc: bool = False
    guests: bool = False
    partitions: bool = False


def ok(*evidence: str) -> Finding:
    """Return: as it should be."""
    return Finding(Verdict.OK, evidence)


def warn(*evidence: str, fix: str) -> Finding:
    """Return: it works now and will hurt."""
    return Finding(Verdict.WARN, evidence, fix)


def fail(*evidence: str, fix: str) -> Finding:
    """Return: it does not work."""
    return Finding(Verdict.FAIL, evidence, fix)


def unknown(*evidence: str, fix: str | None = None) -> Finding:
    """Return: it could not be seen, and why."""
    return Finding(Verdict.UNKNOWN, evidence, fix)


def not_applicable(*evidence: str) -> Finding:
    """Return: this host has nothing to check."""
    return Finding(Verdict.NOT_APPLICABLE, evidence)


def judged_by_host(judge: Callable[[Look, Snapshot], Finding]) -> Callable[[Look], Finding]:
    """Return a judge that is asked only when the host could be looked at, and is unknown otherwise."""

    def judged(look: Look) -> Finding:
        return unknown(look.problem) if look.snapshot is None else judge(look, look.snapshot)

    return judged


def number_of(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: `6.8.0-45-generic` is (6, 8, 0)."""
    numbers = []
    for part in version.strip().split("-")[0].split("."):
        number = whole(part)
        if number is None:
            break
        numbers.append(number)
    return tuple(numbers)
