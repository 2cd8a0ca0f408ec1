# SPDX-License-Identifier: Apache-2.0
"""Which files are on a file system that other hosts have, too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.observe.file_systems import FileSystems, parse_file_systems

TEXT = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:40 / /srv/vm rw - nfs4 nas:/vm rw,vers=4.2
41 22 0:41 / /srv/vm/local rw shared:3 master:1 - xfs /dev/sdb rw
42 22 0:42 / /srv/two\040words rw - fuse.glusterfs gluster:/v rw
43 22 0:43 / /mnt rw - ext4 /dev/sdc rw
44 43 0:44 / /mnt rw - ceph mon:/ rw
45 22 0:45 / /s3 rw - fuse.s3fs s3fs rw
not a line
"""


@pytest.mark.parametrize(
    ("path", "is_shared"),
    [
        ("/var/lib/libvirt/images/a.qcow2", False),
        ("/srv/vm/a.qcow2", True),
        ("/srv/vm", True),
        ("/srv/vmware/a.qcow2", False),
        ("/srv/vm/local/a.qcow2", False),
        ("/srv/two words/a.qcow2", True),
        ("/mnt/a.qcow2", True),
        ("/s3/a.qcow2", False),
        ("", False),
        ("relative", False),
    ],
)
def test_the_nearest_mount_decides(path: str, is_shared: bool) -> None:
    assert parse_file_systems(TEXT).is_shared(path) is is_shared


@pytest.mark.parametrize("kind", ["nfs", "cifs", "ceph", "ocfs2", "gfs2", "lustre"])
def test_kinds_that_several_hosts_have(kind: str) -> None:
    assert FileSystems({"/": kind}).is_shared("/a/b")


@given(st.text(), st.text())
def test_any_text_is_read(text: str, path: str) -> None:
    parse_file_systems(text).is_shared(path)
