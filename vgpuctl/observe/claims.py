# SPDX-License-Identifier: Apache-2.0
"""Reads claims, and which operations are alive; what cannot be read never counts as free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from vgpuctl.domain.domain_xml import parse_domain, parse_hostdevs
from vgpuctl.errors import Busy, FileFailed, VgpuctlError
from vgpuctl.model.vm import HOST_VGPU_CLAIM_PREFIX, Claim, DrainedVm, VmInProgress, VmState
from vgpuctl.ports.host import Host


@contextmanager
def report_unreadable(subject: str) -> Iterator[None]:
    """Report what could not be read below /run/vgpuctl, and where. An unreadable file never counts as "none".

    Raises:
        FileFailed: a read inside the block failed.
    """
    try:
        yield
    except OSError as error:
        look = f"ls -la {error.filename or '/run/vgpuctl'}"
        root = isinstance(error, PermissionError)
        raise FileFailed(
            f"{subject} cannot be read: {error.strerror or error} ({error.filename or '/run/vgpuctl'})",
            hint="run it as root" if root else f"{look}; until they can be read, nothing counts as free",
            errno=error.errno,
            path=error.filename,
        ) from error


def read_claims(host: Host) -> tuple[Claim, ...]:
    """Return every readable claim.

    Raises:
        FileFailed: they cannot be listed.
    """
    with report_unreadable("the claims"):
        return host.claims.all()


def reread_claims(host: Host, carriers: Iterable[str]) -> tuple[Claim, ...]:
    """Return the current claims on these carriers.

    Raises:
        FileFailed: they cannot be read.
    """
    with report_unreadable("the claims"):
        return host.claims.read(frozenset(carriers)).claims


def living_operations(host: Host, ids: Iterable[str | None]) -> frozenset[str | None]:
    """Return those of these operations that are alive.

    Raises:
        FileFailed: it cannot be read.
    """
    with report_unreadable("which operations are running"):
        return host.operations.living(frozenset(ids))


def is_alive(host: Host, entry: Claim | DrainedVm | VmInProgress) -> bool:
    """Say whether the operation that wrote a claim or a note is alive.

    Raises:
        FileFailed: it cannot be read.
    """
    return bool(living_operations(host, [entry.operation]))


def is_claim_in_use(host: Host, claim: Claim) -> bool:
    """Return whether the claim's VM is not off and has the claimed carrier. If it cannot be read, return True.

    A VM had its adopted devices before vgpuctl: they are in use as vgpuctl's once the VM's record has them.
    """
    try:
        domain = host.hypervisor.find_domain(claim.vm_uuid)
        if domain is None or domain.state is VmState.STOPPED:
            return False
        record = parse_domain(domain.xml, domain.state, host.machine_id).record if claim.adopted else None
    except VgpuctlError:
        return True
    if claim.adopted and (record is None or all(v.carrier != claim.carrier for v in record.vgpus)):
        return False
    return any(h.carrier == claim.carrier for h in parse_hostdevs(domain.live_xml or domain.xml))


def gpu_setup_error(claim: Claim) -> Busy:
    """Return the error for working on a GPU that another operation sets up; `claim`: that operation's."""
    return Busy(
        f"process {claim.process.pid} is setting up {claim.gpu}: {claim.command}",
        hint="wait for it, then run the command again",
        gpu=claim.gpu,
        pid=claim.process.pid,
    )


def refuse_claimed_name(host: Host, owner: str) -> None:
    """Refuse the name of a vGPU that has a claim: somebody makes it now, or was killed while making it.

    `owner`: the id under which its carrier is claimed.

    Raises:
        Busy: naming the process.
    """
    for claim in read_claims(host):
        if claim.vm_uuid == owner:
            alive = is_alive(host, claim)
            work = f"{'is creating' if alive else 'was creating'} {claim.holder_text}"
            raise Busy(
                f"process {claim.process.pid} {work}: {claim.command}",
                hint="wait for it, then run the command again"
                if alive
                else "vgpuctl reconcile-host, then run the command again",
                pid=claim.process.pid,
                vgpu=claim.vm.removeprefix(HOST_VGPU_CLAIM_PREFIX),
            )


def refuse_concurrent_command(host: Host, name: str, uuid: str) -> None:
    """Refuse a VM for which another live operation holds a claim.

    Raises:
        Busy: naming the process.
    """
    for other in read_claims(host):
        is_other = other.vm_uuid == uuid and other.operation != host.operations.current().id
        if is_other and is_alive(host, other):
            raise Busy(
                f"process {other.process.pid} works on VM {name}: {other.command}",
                hint="wait for it, then run the command again",
                pid=other.process.pid,
                vm=name,
            )
