# SPDX-License-Identifier: Apache-2.0
"""The seed is made exclusively, verified, undone, and never shows its contents."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host, picture
from vgpuctl.errors import Exists, VerifyFailed
from vgpuctl.model.request import CloudInit, CloudInitFile
from vgpuctl.model.vm import DiskRole, ManagedDisk
from vgpuctl.operations.steps.storage import CreateSeed, DeleteVolume

PATH = "/var/lib/libvirt/images/vm-seed.iso"
DISK = ManagedDisk("default", "vm-seed.iso", PATH, 0, role=DiskRole.SEED)
STEP = CreateSeed(DISK, CloudInit(CloudInitFile("/root/ud", "#cloud-config\npassword: hunter2\n")), "id", "vm")


@pytest.fixture
def host(tmp_path):
    return open_sim_host(tmp_path, "t4")


def test_it_is_made_read_back_and_taken_back(host):
    before = picture(host)
    with pytest.raises(VerifyFailed, match="reads back as nothing"):
        STEP.verify(host.ports)
    STEP.perform(host.ports)
    STEP.verify(host.ports)
    assert picture(host).files[PATH][0] > 2048
    STEP.undo(host.ports)
    assert picture(host) == before


def test_an_existing_seed_is_kept(host):
    host.ports.storage.create_private_volume("default", DISK.volume, b"somebody's")
    before = picture(host)
    with pytest.raises(Exists):
        STEP.perform(host.ports)
    assert picture(host) == before


def test_only_its_paths_are_shown():
    assert STEP.describe() == f"create cloud-init seed {PATH} from /root/ud"
    assert DeleteVolume(DISK).describe() == f"delete cloud-init seed {PATH}"
    assert "hunter2" not in repr(STEP)
