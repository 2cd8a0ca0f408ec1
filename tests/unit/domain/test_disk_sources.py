# SPDX-License-Identifier: Apache-2.0
"""Files of a domain's disks, as the config XML and the live XML name them."""

from __future__ import annotations

from vgpuctl.domain.disk_sources import DiskSources, parse_disk_sources

CONFIG = """<domain><devices>
<disk type='file'><source file='/a.qcow2'/></disk>
<disk type='block'><source dev='/dev/vg/b'/></disk>
<disk type='volume'><source pool='p' volume='v'/></disk>
<disk type='network'><source protocol='rbd' name='x'/></disk>
<disk type='file' device='cdrom'/>
</devices></domain>"""
LIVE = """<domain><devices><disk type='file'><source file='/a.qcow2'/>
<backingStore type='file'><source file='/mid.qcow2'/>
<backingStore type='file'><source file='/base.qcow2'/><backingStore/></backingStore></backingStore>
<mirror type='file'><source file='/copy.qcow2'/></mirror></disk></devices></domain>"""


def test_files_block_devices_and_volumes_are_named_and_empty_drives_are_not():
    assert parse_disk_sources(CONFIG) == DiskSources(("/a.qcow2", "/dev/vg/b"), (("p", "v"),), ())


def test_a_running_domain_has_its_chain_and_a_copys_target():
    result = parse_disk_sources(CONFIG, LIVE)
    assert result.files == ("/a.qcow2", "/dev/vg/b", "/copy.qcow2")
    assert result.backing_pairs == (("/a.qcow2", "/mid.qcow2"), ("/mid.qcow2", "/base.qcow2"))


def test_a_domain_that_is_off_has_no_live_xml():
    assert parse_disk_sources(CONFIG, None) == parse_disk_sources(CONFIG)
