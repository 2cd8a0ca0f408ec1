# SPDX-License-Identifier: Apache-2.0
"""libvirt's own test driver: a real libvirt library whose domains, pools and networks live in this process."""

import pytest

from vgpuctl.host.virt.connection import LibvirtConnection
from vgpuctl.host.virt.domains import LibvirtHypervisor
from vgpuctl.host.virt.storage import LibvirtStorage


class Time:
    """A clock that only advances while a caller waits, and reports each wait."""

    def __init__(self):
        self.passed = 0.0
        self.on_pause = lambda: None

    def now(self):
        return self.passed

    def monotonic(self):
        return self.passed

    def sleep(self, seconds):
        self.passed += seconds
        self.on_pause()


class Switch:
    """Whether the host lock is held."""

    on = False

    def __call__(self):
        return self.on


@pytest.fixture
def lock():
    return Switch()


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def host(tmp_path):
    """The test driver's configuration: one running domain, a pool and two networks."""
    (tmp_path / "domain.xml").write_text(
        "<domain type='test'><name>first</name><uuid>00000000-0000-4000-8000-000000000001</uuid>"
        "<memory>8192</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>"
    )
    (tmp_path / "pool.xml").write_text(
        "<pool type='dir'><name>default</name><target><path>/no/such/place</path></target></pool>"
    )
    (tmp_path / "network.xml").write_text("<network><name>default</name><bridge name='virbr0'/></network>")
    (tmp_path / "host.xml").write_text(
        "<node><domain file='domain.xml'/><pool file='pool.xml'/><network file='network.xml'/></node>"
    )
    return f"test://{tmp_path}/host.xml"


@pytest.fixture
def connection(host, lock):
    return LibvirtConnection(host, lock)


@pytest.fixture
def hypervisor(connection, clock):
    return LibvirtHypervisor(connection, clock)


@pytest.fixture
def storage(connection, clock):
    return LibvirtStorage(connection, clock, lambda path: None)
