# SPDX-License-Identifier: Apache-2.0
"""Which guests get a blob to join their domain by: those that Windows' setup sets up, and each only once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import VmRequest, request_of_record
from vgpuctl.model.domain_join import BlobUse
from vgpuctl.model.vm import Vm, VmRecord
from vgpuctl.observe.domain_joins import plan_blob

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def blob_for_new_vm(host: Host, request: VmRequest, name: str, uuid: str) -> BlobUse | None:
    """Return the blob by which a new VM's guest joins its domain; None without one, or on disks that exist already.

    Raises:
        VgpuctlError: as `plan_blob`.
    """
    if request.domain_join is None or (request.image is None and request.cdrom is None):
        return None
    return plan_blob(host, request.domain_join, name, uuid)


def blob_for_new_disk(host: Host, vm: Vm, record: VmRecord, volume: str) -> BlobUse | None:
    """Return the blob by which the guest on a new disk, a volume of this name, joins its domain; None without one.

    Raises:
        VgpuctlError: as `plan_blob`.
    """
    name = request_of_record(record.request_fields).domain_join
    return None if name is None else plan_blob(host, name, vm.name, vm.uuid, volume)
