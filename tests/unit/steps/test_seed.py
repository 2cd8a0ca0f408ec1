# SPDX-License-Identifier: Apache-2.0
"""The seed is made exclusively, read back, taken back, and tells nothing of what it holds."""

from __future__ import annotations

import pytest

from tests.worlds import open_host, picture
from vgpuctl.errors import Exists, VerifyFailed
from vgpuctl.model.vm import DiskRole, MadeDisk
from vgpuctl.model.wish import UserData
from vgpuctl.steps.seed import MakeSeed
from vgpuctl.steps.storage import RemoveVolume

PATH = "/var/lib/libvirt/images/vm-seed.iso"
DISK = MadeDisk("default", "vm-seed.iso", PATH, 0, role=DiskRole.SEED)
STEP = MakeSeed(DISK, UserData("/root/ud", "#cloud-config\npassword: hunter2\n"), "id", "vm")


@pytest.fixture
def host(tmp_path):
    return open_host(tmp_path, "t4")


def test_it_is_made_read_back_and_taken_back(host):
    before = picture(host)
    with pytest.raises(VerifyFailed, match="reads back as nothing"):
        STEP.verify(host.world)
    STEP.perform(host.world)
    STEP.verify(host.world)
    assert picture(host).files[PATH][0] > 2048
    STEP.undo(host.world)
    assert picture(host) == before


def test_a_name_that_is_taken_is_left_alone(host):
    host.world.storage.put_volume("default", DISK.volume, b"somebody's")
    before = picture(host)
    with pytest.raises(Exists):
        STEP.perform(host.world)
    assert picture(host) == before


def test_it_is_told_by_its_paths_alone():
    assert STEP.describe() == f"make cloud-init seed {PATH} from /root/ud"
    assert RemoveVolume(DISK).describe() == f"delete cloud-init seed {PATH}"
    assert "hunter2" not in repr(STEP)
