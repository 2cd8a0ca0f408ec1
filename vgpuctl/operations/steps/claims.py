# SPDX-License-Identifier: Apache-2.0
"""Steps for claims. A transaction performs `TakeClaim` under the host lock, before it creates anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from vgpuctl.errors import FileFailed, InUse, VerifyFailed
from vgpuctl.model.port_values import ClaimList
from vgpuctl.model.vm import GPU_SETUP_CLAIM, Claim
from vgpuctl.observe.claims import read_claims, refuse_concurrent_command
from vgpuctl.ports.host import Host
from vgpuctl.ports.step import Removal, Step


def _claim_error(carrier: str, what: str, error: OSError) -> FileFailed:
    return FileFailed(
        f"the claim on {carrier} cannot be {what}: {error.strerror or error}",
        hint="df -h /run; df -i /run; findmnt /run",
        carrier=carrier,
        errno=error.errno,
        path=error.filename,
    )


def _conflict_error(host: Host, claim: Claim, path: str) -> InUse | None:
    """Return an error that names the holder of the carrier; None if this VM already holds it."""
    carrier = claim.carrier
    try:
        listed = host.claims.read()
    except OSError:
        listed = ClaimList((), (carrier,))
    holder = next((c for c in listed.claims if c.carrier == carrier), None)
    if holder is not None and holder.vm_uuid == claim.vm_uuid:
        return None
    if holder is not None:
        whose = "to set it up" if holder.vm == GPU_SETUP_CLAIM else f"for {holder.holder_text}"
        return InUse(
            f"{carrier} is claimed {whose}, by process {holder.process.pid}: {holder.command}",
            hint="vgpuctl reconcile-host, then run the command again",
            carrier=carrier,
            path=path,
            vm=None if holder.vm == GPU_SETUP_CLAIM else holder.vm,
            vm_uuid=holder.vm_uuid,
            pid=holder.process.pid,
        )
    if carrier in listed.unreadable:
        message, hint = (
            f"{carrier} is claimed, but the owner cannot be read: {path}",
            f"rm {path}, then vgpuctl reconcile-host, if no vgpuctl process works on it any more",
        )
    else:
        message, hint = f"{carrier} was claimed until a moment ago", "run the command again"
    return InUse(message, hint=hint, carrier=carrier, path=path)


class TakeClaim(Step):
    """Claim one carrier for a VM."""

    records_owner: ClassVar[bool] = True

    claim: Claim

    def describe(self) -> str:
        if self.claim.vm == GPU_SETUP_CLAIM:
            return f"claim all of GPU {self.claim.gpu} while it is set up"
        what = self.claim.profile or self.claim.backend
        return f"claim {self.claim.function} on GPU {self.claim.gpu} for {what}"

    def perform(self, host: Host) -> None:
        """Write the claim unless it exists.

        Raises:
            InUse: another VM has claimed the carrier, or the claim cannot be read; nothing was written.
        """
        self._write(host, host.claims.add)

    def take_over(self, host: Host) -> None:
        """Replace the claim that another operation wrote for the same VM, atomically: the carrier is never unclaimed.

        Raises:
            InUse: as `perform`.
        """
        self._write(host, host.claims.replace)

    def _write(self, host: Host, write: Callable[[Claim], None]) -> None:
        try:
            write(self.claim)
        except FileExistsError as error:
            conflict = _conflict_error(host, self.claim, str(error.filename))
            if conflict is not None:
                raise conflict from error
        except OSError as error:
            raise _claim_error(self.claim.carrier, "written", error) from error

    def verify(self, host: Host) -> None:
        if not self._is_held(host):
            raise VerifyFailed(f"the claim on {self.claim.carrier} vanished", carrier=self.claim.carrier)

    def _is_held(self, host: Host) -> bool:
        wanted_claim = (self.claim.carrier, self.claim.vm_uuid)
        return any((c.carrier, c.vm_uuid) == wanted_claim for c in read_claims(host))

    def undo(self, host: Host) -> None:
        """Release it if this VM still holds it."""
        host.claims.remove(self.claim.carrier, self.claim.vm_uuid)


class ReleaseClaim(Removal):
    """Release a VM's claim on a carrier."""

    carrier: str
    vm_uuid: str

    def describe(self) -> str:
        return f"release the claim on {self.carrier}"

    def perform(self, host: Host) -> None:
        """Remove the claim; a missing one is no error."""
        try:
            host.claims.remove(self.carrier, self.vm_uuid)
        except OSError as error:
            raise _claim_error(self.carrier, "removed", error) from error

    def verify(self, host: Host) -> None:
        """Nothing to read back: removing a file either worked or raised."""


class RefuseConcurrentCommand(Removal):
    """Check that nobody starts a VM that is being removed: a start takes its claims first and then reads the record."""

    name: str
    uuid: str

    def describe(self) -> str:
        return f"keep other commands off VM {self.name}"

    def perform(self, host: Host) -> None:
        """Check the claims.

        Raises:
            Busy: another live operation has one for this VM.
        """
        refuse_concurrent_command(host, self.name, self.uuid)

    def verify(self, host: Host) -> None:
        """Nothing was changed."""
