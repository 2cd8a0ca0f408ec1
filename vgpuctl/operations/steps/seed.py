# SPDX-License-Identifier: Apache-2.0
"""Steps of the seed that cloud-init reads in a guest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.errors import HostCannot, VerifyFailed, VgpuctlError
from vgpuctl.model.domain_join import BlobUse, JoinSource
from vgpuctl.model.request import CloudInit, GuestSetup
from vgpuctl.model.vm import ManagedDisk
from vgpuctl.observe.domain_joins import forget_blob, release_blob, take_blob
from vgpuctl.operations.steps.storage import CreateVolume
from vgpuctl.ports.step import Plan, Removal, Step
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

T = TypeVar("T")


class CreateSeed(Step):
    """Create the CD-ROM from which cloud-init, or Windows' setup, configures a guest.

    `blob`: by which the guest joins a domain; it is read when the seed is written.
    """

    disk: ManagedDisk
    files: CloudInit
    instance_id: str
    hostname: str
    blob: BlobUse | None = None

    def describe(self) -> str:
        """Say where it is and what it is built from."""
        return f"create cloud-init seed {self.disk.path} from {' and '.join(self.files.sources)}"

    def perform(self, host: Host) -> None:
        """Create it; raises Exists if the name is taken."""
        from vgpuctl.domain.cloud_init_seed import build_seed_image

        files = self.files
        if self.blob is not None:
            setup = replace(files.setup, domain_join=take_blob(host, self.blob))
            files = replace(files, setup=setup)
        data = build_seed_image(files, self.instance_id, self.hostname)
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
        """Delete it if it is still at its path, and then let its blob be used again."""
        CreateVolume(self.disk).undo(host)
        if self.blob is not None:
            release_blob(host, self.blob)


class WriteSetup(Step):
    """Write what vgpuctl sets up in a guest into its seed, or take it out; what the user put there stays.

    A guest reads it at its next boot. `unread`: it runs now. `without`: fields whose secrets it has not. `blob`: by
    which a guest on a new disk joins a domain; without one a seed keeps its own, if the setup still has a domain.
    """

    name: str
    disk: ManagedDisk
    setup: GuestSetup
    unread: bool = False
    without: tuple[str, ...] = ()
    blob: BlobUse | None = None

    def describe(self) -> str:
        """Say what the seed has afterwards."""
        missing = " and ".join(f"no {field}" for field in self.without)
        what = " and ".join(self.setup.fields) or missing or "that nothing is set up in its guest"
        without = f", with {missing}," if self.setup.fields and missing else ""
        return f"write {what}{without} into the cloud-init seed {self.disk.path}"

    def perform(self, host: Host) -> None:
        """Read the seed and write it, with the same size; where that fails, write what was there.

        Raises:
            HostCannot: it is no seed of vgpuctl's, or too small.
        """
        from vgpuctl.domain.cloud_init_seed import with_setup

        before = host.storage.read_private_volume(self.disk.pool, self.disk.volume)
        setup = self.setup
        if self.blob is not None:
            setup = replace(setup, domain_join=take_blob(host, self.blob))
        changed = self._try(partial(with_setup, before, setup, unread=self.unread))
        try:
            host.storage.rewrite_private_volume(self.disk.pool, self.disk.volume, changed)
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                host.storage.rewrite_private_volume(self.disk.pool, self.disk.volume, before)
            raise

    def verify(self, host: Host) -> None:
        """Check that the guest's script is in it."""
        if not self._is_written(host):
            raise VerifyFailed(f"the seed {self.disk.path} of {self.name} reads back differently", path=self.disk.path)

    def undo(self, host: Host) -> None:
        """Leave it: what it has is what the VM's record says. A blob is taken out, and then can be used again.

        Raises:
            VgpuctlError: it is still there, so no other setup can use it.
        """
        if self.blob is not None:
            setup = replace(self.setup, domain_join=None)
            replace(self, setup=setup, blob=None).perform(host)  # users of the old disk could read it
            release_blob(host, self.blob)

    def read_script(self, host: Host) -> str | None:
        """Return the script that the seed has, None for none.

        Raises:
            HostCannot: it is no seed of vgpuctl's.
        """
        from vgpuctl.domain.cloud_init_seed import read_setup

        return self._try(partial(read_setup, host.storage.read_private_volume(self.disk.pool, self.disk.volume)))

    def is_done(self, host: Host) -> bool:
        """Return whether the seed has just this, whenever it was written.

        Raises:
            HostCannot: it is no seed of vgpuctl's.
        """
        return self.blob is None and self._is_written(host)

    def _is_written(self, host: Host) -> bool:
        from vgpuctl.domain.cloud_init_seed import has_setup

        image = host.storage.read_private_volume(self.disk.pool, self.disk.volume)
        return self._try(partial(has_setup, image, self.setup))

    def _try(self, work: Callable[[], T]) -> T:
        """Return what the work on the seed returns; raised outside `except`, where it has no `__context__` to show."""
        problem = ""
        try:
            return work()
        except ValueError as error:
            problem = str(error)
        raise HostCannot(f"the seed {self.disk.path} of {self.name} cannot be changed: {problem}", check="seed")


class ForgetBlob(Removal):
    """Delete the blob that a guest has now: it counts for one setup. One that cannot be deleted is of no use to others.

    Until then a crash leaves it to the next try of the same setup.
    """

    blob: BlobUse

    def describe(self) -> str:
        """Say whose it is."""
        return f"delete the used blob of {self.blob.computer} for the domain {self.blob.name}"

    def perform(self, host: Host) -> str | None:
        """Delete it; return why it could not be deleted."""
        try:
            forget_blob(host, self.blob)
        except VgpuctlError as error:
            return f"the used blob of {self.blob.computer} is still there: {error.message}"
        return None

    def verify(self, host: Host) -> None:
        """Nothing depends on it."""


def forget_steps(blob: BlobUse | None) -> tuple[ForgetBlob, ...]:
    """Return the step after which a guest has its blob; a program's was kept nowhere."""
    return () if blob is None or blob.source is JoinSource.PROGRAM else (ForgetBlob(blob),)


def with_blob(plan: Plan, blob: BlobUse | None) -> Plan:
    """Return the plan of a new VM, whose seed brings this blob."""
    if blob is None:
        return plan
    steps = (replace(step, blob=blob) if isinstance(step, CreateSeed) else step for step in plan.steps)
    return replace(plan, steps=(*steps, *forget_steps(blob)))
