# SPDX-License-Identifier: Apache-2.0
"""Volumes that are sent from one simulated host to another."""

from __future__ import annotations

import pytest

from tests.unit.sim.hosts import MakeHost, libvirt_refused
from vgpuctl.errors import NoSpace
from vgpuctl.sim import SimHost

LOGICAL = "storage: {{pools: [{{name: vg, kind: logical, capacity_gib: {}}}]}}\n"
GIB = 1 << 30


class Cancelled(Exception):
    pass


def ignore(percent: float) -> None:
    pass


@pytest.fixture
def hosts(make: MakeHost) -> tuple[SimHost, SimHost]:
    """A host with a volume that boots, and one with an empty volume of its name."""
    source, target = (make("images: [{path: /srv/b.qcow2, firmware: uefi}]\n", name) for name in "ab")
    for host in (source, target):
        host.storage.create_pool("default", "/images")
    source.storage.create_volume("default", "a", 2 * GIB, "/srv/b.qcow2", "qcow2")
    target.storage.create_volume("default", "a", GIB)
    return source, target


def firmware(host: SimHost) -> tuple[str, int]:
    image = host.storage.image("/images/a")
    assert image is not None
    return image.firmware, image.virtual_size_bytes


def test_the_content_comes_with_its_size_and_base(hosts: tuple[SimHost, SimHost]) -> None:
    source, target = hosts
    percents: list[float] = []
    source.storage.send_volume("default", "a", target.migration_uri, percents.append)
    assert percents == [0.0, 50.0, 100.0]
    assert firmware(target) == firmware(source) == ("uefi", 2 * GIB)
    volume = target.storage.volume("default", "a")
    assert volume is not None
    assert volume.backing_path == "/srv/b.qcow2"


def test_a_reporter_that_raises_leaves_half_of_it(hosts: tuple[SimHost, SimHost]) -> None:
    source, target = hosts

    def cancel(percent: float) -> None:
        if percent:
            raise Cancelled

    with pytest.raises(Cancelled):
        source.storage.send_volume("default", "a", target.migration_uri, cancel)
    assert firmware(target)[0] == "none"
    assert firmware(source)[0] == "uefi"


def test_the_volume_must_be_on_both_hosts(hosts: tuple[SimHost, SimHost]) -> None:
    source, target = hosts
    uri = target.migration_uri
    libvirt_refused(49, lambda: source.storage.send_volume("none", "a", uri, ignore))
    libvirt_refused(50, lambda: source.storage.send_volume("default", "none", uri, ignore))
    target.storage.remove_volume("default", "a")
    libvirt_refused(50, lambda: source.storage.send_volume("default", "a", uri, ignore))
    libvirt_refused(38, lambda: source.storage.send_volume("default", "a", "sim:/no/such/host", ignore))


@pytest.mark.parametrize("call", ["send-volume", "receive-volume"])
def test_faults(make: MakeHost, call: str) -> None:
    text = f"faults: [{{on: {call}, code: 38, message: injected}}]\n"
    source, target = make(text, "a"), make(text, "b")
    for host in (source, target):
        host.storage.create_pool("default", "/images")
        host.storage.create_volume("default", "a", GIB)
    words = libvirt_refused(38, lambda: source.storage.send_volume("default", "a", target.migration_uri, ignore))
    assert words == "cannot send volume a: injected"


def test_a_logical_volume_keeps_its_size(make: MakeHost) -> None:
    source, target = make(LOGICAL.format(10), "a"), make(LOGICAL.format(20), "b")
    source.storage.create_volume("vg", "a", 2 * GIB)
    target.storage.create_volume("vg", "a", 3 * GIB)
    source.storage.send_volume("vg", "a", target.migration_uri, ignore)
    volume = target.storage.volume("vg", "a")
    assert volume is not None
    assert volume.capacity_bytes == 3 * GIB
    with pytest.raises(NoSpace):
        target.storage.send_volume("vg", "a", source.migration_uri, ignore)
