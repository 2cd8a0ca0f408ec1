# SPDX-License-Identifier: Apache-2.0
"""Claims as steps. The engine performs `HoldClaim` under the host lock, before anything else is made."""

from __future__ import annotations

from dataclasses import dataclass

from vgpuctl.errors import VerifyFailed
from vgpuctl.model.seams import World
from vgpuctl.model.vm import Claim


@dataclass(frozen=True, slots=True)
class HoldClaim:
    """Claim one carrier for a VM."""

    claim: Claim

    def describe(self) -> str:
        """Say what is claimed."""
        what = self.claim.profile or self.claim.backend
        return f"claim {self.claim.function} on GPU {self.claim.gpu} for {what}"

    def perform(self, world: World) -> None:
        """Write the claim; raises FileExistsError when the carrier is claimed already."""
        world.claims.add(self.claim)

    def verify(self, world: World) -> None:
        """See the claim."""
        if not any(c.carrier == self.claim.carrier and c.vm_uuid == self.claim.vm_uuid for c in world.claims.all()):
            raise VerifyFailed(f"the claim on {self.claim.carrier} vanished", carrier=self.claim.carrier)

    def undo(self, world: World) -> None:
        """Release it, if it still is this VM's."""
        world.claims.remove(self.claim.carrier, self.claim.vm_uuid)


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Give up a VM's claim on a carrier."""

    carrier: str
    vm_uuid: str

    def describe(self) -> str:
        """Say what is released."""
        return f"release the claim on {self.carrier}"

    def perform(self, world: World) -> None:
        """Remove the claim; a missing one is no error."""
        world.claims.remove(self.carrier, self.vm_uuid)

    def verify(self, world: World) -> None:
        """Nothing to read back: removing a file either worked or raised."""

    def undo(self, world: World) -> None:
        """Nothing: the carrier may have been claimed anew."""
