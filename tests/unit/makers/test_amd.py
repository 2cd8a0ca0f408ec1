# SPDX-License-Identifier: Apache-2.0
"""AMD's driver gim sets the number of VFs itself."""

from __future__ import annotations

from vgpuctl.makers import own_vf_setting
from vgpuctl.makers.amd import Amd


def test_its_driver_takes_the_number_of_vfs_from_its_own_configuration():
    assert Amd.own_vf_setting is not None
    assert own_vf_setting("gim") == Amd.own_vf_setting
    assert own_vf_setting("amdgpu") is None
