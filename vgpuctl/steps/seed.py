# SPDX-License-Identifier: Apache-2.0
"""The seed for cloud-init as a step. It holds passwords and keys, so only its path and its file's are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import VerifyFailed
from vgpuctl.model.vm import MadeDisk
from vgpuctl.model.wish import UserData
from vgpuctl.steps.storage import MakeVolume
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World


class MakeSeed(Value):
    """Make the CD-ROM from which cloud-init sets a guest up."""

    disk: MadeDisk
    user_data: UserData
    instance_id: str
    host: str

    def describe(self) -> str:
        """Say where it is and what it is made from."""
        return f"make cloud-init seed {self.disk.path} from {self.user_data.path}"

    def perform(self, world: World) -> None:
        """Make it; raises Exists when the name is taken."""
        from vgpuctl.domain.seed import seed_image

        data = seed_image(self.user_data.text, self.instance_id, self.host)
        world.storage.put_volume(self.disk.pool, self.disk.volume, data)

    def verify(self, world: World) -> None:
        """See that it is at its path and not empty."""
        found = world.storage.volume(self.disk.pool, self.disk.volume)
        if found is None or found.path != self.disk.path or not found.capacity_bytes:
            raise VerifyFailed(
                f"the cloud-init seed {self.disk.path} reads back as {found.path if found else 'nothing'}",
                hint=f"virsh vol-info --pool {self.disk.pool} {self.disk.volume}",
                path=self.disk.path,
            )

    def undo(self, world: World) -> None:
        """Delete it, if it still is at its path."""
        MakeVolume(self.disk).undo(world)
