# SPDX-License-Identifier: Apache-2.0
"""The channels of domains without an operating system; tests/lab has one whose guest answers."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import pytest

from tests.contract.site import Site, libvirt_refuses, new_uuid
from tests.contract.test_libvirt import DOMAIN
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.guest_report import CHANNEL
from vgpuctl.ports.guests import GuestChannel

pytestmark = pytest.mark.forms("vendor-vf")
DEVICE = f"<channel type='unix'><target type='virtio' name='{CHANNEL}'/></channel>"
END_SECONDS = 30.0


@pytest.fixture
def uuid(site: Site) -> Iterator[str]:
    """A running domain with the channel; the fixture removes it afterwards."""
    made = new_uuid()
    site.ports.hypervisor.define(DOMAIN.format(name=f"channel-{made[:8]}", uuid=made, devices=DEVICE, cpu=""))
    site.ports.hypervisor.start(made)
    yield made
    site.ports.hypervisor.destroy(made)
    site.ports.hypervisor.undefine(made)


class Opened:
    """An open channel, and what came of it."""

    def __init__(self, site: Site, uuid: str, name: str = CHANNEL) -> None:
        self.data: list[bytes] = []
        self.reasons: list[str] = []
        self.ended = Event()
        assert site.ports.guest_channels is not None
        self.channel: GuestChannel = site.ports.guest_channels.open(uuid, name, on_data=self.read, on_end=self.end)

    def read(self, data: bytes) -> bool:
        self.data.append(data)
        return True

    def end(self, reason: str) -> None:
        self.reasons.append(reason)
        self.ended.set()


def test_a_channel_is_opened_again(site: Site, uuid: str) -> None:
    first = Opened(site, uuid)
    first.channel.send(b"nobody reads this\n")
    first.channel.close()
    first.channel.close()
    second = Opened(site, uuid)
    second.channel.close()
    assert (first.reasons, first.data, second.reasons) == ([], [], [])


def test_it_ends_with_the_domain(site: Site, uuid: str) -> None:
    opened = Opened(site, uuid)
    site.ports.hypervisor.destroy(uuid)
    assert opened.ended.wait(END_SECONDS)
    with pytest.raises(VgpuctlError):
        opened.channel.send(b"x")
    opened.channel.close()
    assert len(opened.reasons) == 1
    site.ports.hypervisor.start(uuid)
    Opened(site, uuid).channel.close()


def test_there_is_no_other_channel_and_none_of_a_domain_that_is_off(site: Site, uuid: str) -> None:
    with libvirt_refuses(1):
        Opened(site, uuid, "org.example.other")
    site.ports.hypervisor.destroy(uuid)
    with libvirt_refuses(55):
        Opened(site, uuid)
    with libvirt_refuses(42):
        Opened(site, new_uuid())
