# SPDX-License-Identifier: Apache-2.0
"""libvirt's own domain files, which restore-host reads while libvirt does not run."""

from __future__ import annotations

import pytest

from tests.contract.site import Site, new_uuid
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.operations.devices import DOMAIN_XML_DIRECTORY

pytestmark = pytest.mark.forms("mdev-pf")
DOMAIN = """<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"""


def test_a_defined_domain_has_a_file_with_its_name_until_it_is_undefined(site: Site) -> None:
    uuid = new_uuid()
    record = site.ports.hypervisor.define(DOMAIN.format(name="contract-file", uuid=uuid))
    try:
        assert "contract-file.xml" in site.ports.sysfs.listdir(DOMAIN_XML_DIRECTORY)
        text = site.ports.sysfs.read(f"{DOMAIN_XML_DIRECTORY}/contract-file.xml")
        assert parse_domain(text, record.state, site.ports.machine_id).uuid == uuid
    finally:
        site.ports.hypervisor.undefine(uuid)
    assert "contract-file.xml" not in site.ports.sysfs.listdir(DOMAIN_XML_DIRECTORY)
