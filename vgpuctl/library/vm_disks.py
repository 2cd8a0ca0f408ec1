# SPDX-License-Identifier: Apache-2.0
"""Changes of the disks of VMs that exist, and of the seed for cloud-init."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import InvalidInput
from vgpuctl.library.call import Calls, change

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.vms import VmReport


class DiskCalls(Calls):
    """Disks and seeds of VMs."""

    @change("resize-disk", "vm")
    def resize_disk(
        self, name: str, size: str | int, *, disk: str | None = None, dry_run: bool = False
    ) -> Outcome[VmReport]:
        """Grow a VM's disk to `size` ("60GiB"; a bare number is GiB); it never shrinks. `disk`: None, its only one."""
        from vgpuctl.config import rules
        from vgpuctl.operations import resize_disk

        try:
            size_mib = rules.disk_size_mib(size)
        except ValueError as error:
            raise InvalidInput(f"size: {error}", value=str(size)) from error
        return resize_disk.resize_disk(self._ports, self._context(dry_run=dry_run), name, size_mib, disk)

    @change("refresh-vm", "vm")
    def refresh_vm(
        self,
        name: str,
        image: str | None = None,
        *,
        from_image: str | None = None,
        drain: bool = False,
        dry_run: bool = False,
    ) -> Outcome[VmReport]:
        """Rebuild a VM from a base image; what is on its first disk is lost. `drain`: a running VM may be stopped.

        `image` None: from what `prepare_vm` kept.

        `from_image`: a VM whose first disk was not made from this image is left alone.
        """
        from vgpuctl.library import requests
        from vgpuctl.operations import refresh

        base = None if image is None else requests.for_vm(self._ports, name, {"image": image}).image or image
        return refresh.refresh_vm(
            self._ports,
            self._context(dry_run=dry_run),
            name,
            base,
            from_image=from_image,
            drain=drain,
        )

    @change("prepare-vm", "vm")
    def prepare_vm(self, name: str, *, drain: bool = False, dry_run: bool = False) -> Outcome[VmReport]:
        """Keep the first disk of a VM whose guest has shut down; `refresh_vm` without an image goes back to it.

        `drain`: a running VM may be shut down, and is started again.
        """
        from vgpuctl.operations import prepare

        return prepare.prepare_vm(self._ports, self._context(dry_run=dry_run), name, drain=drain)

    @change("refresh-license", "vm")
    def refresh_license(self, name: str, *, clear: bool = False, dry_run: bool = False) -> Outcome[VmReport]:
        """Write a VM's license into its seed again; the helper or QEMU guest agent of a running guest gets it at once.

        Without both the guest gets it at its next boot.

        `clear`: take it out of the seed instead; the guest keeps the one that it has.
        """
        from vgpuctl.operations import guest_setup

        return guest_setup.refresh_license(self._ports, self._context(dry_run=dry_run), name, clear=clear)
