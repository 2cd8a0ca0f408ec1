# SPDX-License-Identifier: Apache-2.0
"""The step for the cloud-init seed. It holds passwords and keys, so messages show only its path and its source's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import VerifyFailed
from vgpuctl.model.request import UserData
from vgpuctl.model.vm import ManagedDisk
from vgpuctl.steps.storage import CreateVolume
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class CreateSeed(Value):
    """Create the CD-ROM from which cloud-init configures a guest."""

    disk: ManagedDisk
    user_data: UserData
    instance_id: str
    hostname: str

    def describe(self) -> str:
        """Say where it is and what it is built from."""
        return f"make cloud-init seed {self.disk.path} from {self.user_data.path}"

    def perform(self, host: Host) -> None:
        """Create it; raises Exists if the name is taken."""
        from vgpuctl.domain.cloud_init_seed import build_seed_image

        data = build_seed_image(self.user_data.text, self.instance_id, self.hostname)
        host.storage.create_private_volume(self.disk.pool, self.disk.volume, data)

    def verify(self, host: Host) -> None:
        """Check that it is at its path and not empty."""
        volume = host.storage.volume(self.disk.pool, self.disk.volume)
        if volume is None or volume.path != self.disk.path or not volume.capacity_bytes:
            raise VerifyFailed(
                f"the cloud-init seed {self.disk.path} reads back as {volume.path if volume else 'nothing'}",
                hint=f"virsh vol-info --pool {self.disk.pool} {self.disk.volume}",
                path=self.disk.path,
            )

    def undo(self, host: Host) -> None:
        """Delete it if it is still at its path."""
        CreateVolume(self.disk).undo(host)
