# SPDX-License-Identifier: Apache-2.0
"""Claims as steps. The engine performs `HoldClaim` under the host lock, before anything else is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from vgpuctl.errors import Busy, FileFailed, InUse, VerifyFailed, VgpuctlError
from vgpuctl.model.records import ClaimsRead
from vgpuctl.model.vm import SETTING_UP, Claim, VmState
from vgpuctl.model.world import World
from vgpuctl.value import Value


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Say what could not be read below /run/vgpuctl, and where; that never counts as "none".

    Raises:
        FileFailed: a read inside the block failed.
    """
    try:
        yield
    except OSError as error:
        look = f"look at it: ls -la {error.filename or '/run/vgpuctl'}"
        root = isinstance(error, PermissionError)
        raise FileFailed(
            f"{what} cannot be read: {error.strerror or error} ({error.filename or '/run/vgpuctl'})",
            hint="run it as root" if root else f"nothing counts as free before they can be; {look}",
            errno=error.errno,
            path=error.filename,
        ) from error


def all_claims(world: World) -> tuple[Claim, ...]:
    """Return every readable claim.

    Raises:
        FileFailed: they cannot be listed.
    """
    with reading("the claims"):
        return world.claims.all()


def claims_on(world: World, claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return the claims that there are on the carriers of these.

    Raises:
        FileFailed: they cannot be read.
    """
    with reading("the claims"):
        return world.claims.read(frozenset(claim.carrier for claim in claims)).claims


def _failed(carrier: str, what: str, error: OSError) -> FileFailed:
    return FileFailed(
        f"the claim on {carrier} cannot be {what}: {error.strerror or error}",
        hint="is /run full, or mounted read-only? df -h /run; df -i /run",
        carrier=carrier,
        errno=error.errno,
        path=error.filename,
    )


def _taken(world: World, wanted: Claim, path: str) -> InUse | None:
    """Say who has the claim's carrier; None when it is this VM's already."""
    carrier = wanted.carrier
    try:
        read = world.claims.read()
    except OSError:
        read = ClaimsRead((), (carrier,))
    holder = next((c for c in read.claims if c.carrier == carrier), None)
    if holder is not None and holder.vm_uuid == wanted.vm_uuid:
        return None
    if holder is not None:
        whose = "to set it up" if holder.vm == SETTING_UP else f"for {holder.holder}"
        return InUse(
            f"{carrier} is claimed {whose}, by process {holder.process.pid}: {holder.command}",
            hint="vgpuctl reconcile, then run the command again",
            carrier=carrier,
            path=path,
            vm=None if holder.vm == SETTING_UP else holder.vm,
            vm_uuid=holder.vm_uuid,
            pid=holder.process.pid,
        )
    if carrier in read.unreadable:
        message, hint = (
            f"{carrier} is claimed, but for whom cannot be read: {path}",
            f"when no vgpuctl works on it any more: rm {path}, then vgpuctl reconcile",
        )
    else:
        message, hint = f"{carrier} was claimed until just now", "run the command again"
    return InUse(message, hint=hint, carrier=carrier, path=path)


def runs_with(world: World, claim: Claim) -> bool:
    """Say whether a claim's VM is not off and has what is claimed; unreadable counts as that."""
    from vgpuctl.domain.parse import hostdevs_of  # which libvirt's hook does without

    try:
        record = world.hypervisor.find_domain(claim.vm_uuid)
    except VgpuctlError:
        return True
    if record is None or record.state is VmState.STOPPED:
        return False
    return any(h.carrier == claim.carrier for h in hostdevs_of(record.live_xml or record.xml))


class HoldClaim(Value):
    """Claim one carrier for a VM."""

    tells_owner: ClassVar[bool] = True

    claim: Claim

    def describe(self) -> str:
        """Say what is claimed."""
        if self.claim.vm == SETTING_UP:
            return f"claim all of GPU {self.claim.gpu} while it is set up"
        what = self.claim.profile or self.claim.backend
        return f"claim {self.claim.function} on GPU {self.claim.gpu} for {what}"

    def perform(self, world: World) -> None:
        """Write the claim, unless it is there.

        Raises:
            InUse: another VM has claimed the carrier, or whose the claim is cannot be read; nothing was written.
        """
        self._write(world, world.claims.add)

    def renew(self, world: World) -> None:
        """Write it over the one that its VM has, as another process's, in one step: never is there none.

        Raises:
            InUse: as `perform`.
        """
        self._write(world, world.claims.renew)

    def _write(self, world: World, write: Callable[[Claim], None]) -> None:
        try:
            write(self.claim)
        except FileExistsError as error:
            taken = _taken(world, self.claim, str(error.filename))
            if taken is not None:
                raise taken from error
        except OSError as error:
            raise _failed(self.claim.carrier, "written", error) from error

    def verify(self, world: World) -> None:
        """See the claim."""
        if not self._there(world):
            raise VerifyFailed(f"the claim on {self.claim.carrier} vanished", carrier=self.claim.carrier)

    def _there(self, world: World) -> bool:
        mine = (self.claim.carrier, self.claim.vm_uuid)
        return any((c.carrier, c.vm_uuid) == mine for c in all_claims(world))

    def undo(self, world: World) -> None:
        """Release it, if it still is this VM's."""
        world.claims.remove(self.claim.carrier, self.claim.vm_uuid)


class ReleaseClaim(Value):
    """Give up a VM's claim on a carrier."""

    carrier: str
    vm_uuid: str

    def describe(self) -> str:
        """Say what is released."""
        return f"release the claim on {self.carrier}"

    def perform(self, world: World) -> None:
        """Remove the claim; a missing one is no error."""
        try:
            world.claims.remove(self.carrier, self.vm_uuid)
        except OSError as error:
            raise _failed(self.carrier, "removed", error) from error

    def verify(self, world: World) -> None:
        """Nothing to read back: removing a file either worked or raised."""

    def undo(self, world: World) -> None:
        """Nothing: the carrier may have been claimed anew."""


def refuse_others(world: World, name: str, uuid: str) -> None:
    """Refuse a VM for which another live process holds a claim.

    Raises:
        Busy: naming the process.
    """
    for other in all_claims(world):
        working = other.vm_uuid == uuid and other.process != world.processes.this()
        if working and world.processes.alive(other.process):
            raise Busy(
                f"process {other.process.pid} works on VM {name}: {other.command}",
                hint="wait for it, then run the command again",
                pid=other.process.pid,
                vm=name,
            )


class RefuseOthers(Value):
    """See that nobody starts a VM that is being removed: who starts it claims first, and reads its record then."""

    name: str
    uuid: str

    def describe(self) -> str:
        """Say what is looked for."""
        return f"see that no other command works on VM {self.name}"

    def perform(self, world: World) -> None:
        """Look at the claims.

        Raises:
            Busy: a live process has one for this VM.
        """
        refuse_others(world, self.name, self.uuid)

    def verify(self, world: World) -> None:
        """Nothing was changed."""

    def undo(self, world: World) -> None:
        """Nothing was changed."""
