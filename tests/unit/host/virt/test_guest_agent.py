# SPDX-License-Identifier: Apache-2.0
"""The QEMU guest agent where there is none: libvirt's test driver. tests/contract has QEMU's domains."""

from __future__ import annotations

import pytest

from tests.unit.host.virt.test_domains import FIRST, SECOND
from vgpuctl.errors import LibvirtFailed
from vgpuctl.host.virt.guest_agent import LibvirtGuestAgent


@pytest.mark.parametrize(("uuid", "number"), [(FIRST, 3), (SECOND, 42)])
def test_an_error_has_libvirts_number(hypervisor, uuid, number):
    with pytest.raises(LibvirtFailed, match=f"cannot ask the guest agent of VM {uuid}") as caught:
        LibvirtGuestAgent(hypervisor.connection).command(uuid, "guest-info", {}, wait_seconds=1)
    assert caught.value.facts["libvirt_code"] == number


def test_not_while_the_host_lock_is_held(hypervisor, lock):
    lock.on = True
    with pytest.raises(AssertionError, match="under the host lock"):
        LibvirtGuestAgent(hypervisor.connection).command(FIRST, "guest-info", {}, wait_seconds=1)
