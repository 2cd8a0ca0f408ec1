# SPDX-License-Identifier: Apache-2.0
"""The QEMU guest agent of domains without an operating system: nobody answers. qemu-ga itself is in tests/unit."""

from __future__ import annotations

import pytest

from tests.contract.site import Site, libvirt_refuses, new_uuid
from tests.contract.test_libvirt import DOMAIN
from vgpuctl.model.guest_agent import CHANNEL

pytestmark = pytest.mark.forms("vendor-vf")
DEVICE = f"<channel type='unix'><target type='virtio' name='{CHANNEL}'/></channel>"


def define(site: Site, uuid: str, devices: str) -> None:
    site.ports.hypervisor.define(DOMAIN.format(name=f"agent-{uuid[:8]}", uuid=uuid, devices=devices, cpu=""))


def ask(site: Site, uuid: str) -> object:
    assert site.ports.guest_agent is not None
    return site.ports.guest_agent.command(uuid, "guest-info", {}, wait_seconds=1)


@pytest.mark.parametrize(("devices", "number"), [(DEVICE, 86), ("", 74)], ids=["a silent guest", "no channel"])
def test_a_domain_in_which_no_guest_agent_answers(site: Site, uuid: str, devices: str, number: int) -> None:
    define(site, uuid, devices)
    with libvirt_refuses(55):
        ask(site, uuid)
    site.ports.hypervisor.start(uuid)
    with libvirt_refuses(number):
        ask(site, uuid)


def test_there_is_none_of_an_unknown_domain(site: Site) -> None:
    with libvirt_refuses(42):
        ask(site, new_uuid())
