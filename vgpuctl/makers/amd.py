# SPDX-License-Identifier: Apache-2.0
"""AMD: plain VFs, whose number its driver gim takes from its own configuration alone.

Source: amd/MxGPU-Virtualization, gim_shim: gim has no sriov_configure, so a write of sriov_numvfs fails (ENOENT).
"""

from __future__ import annotations

from vgpuctl.makers.maker import Maker
from vgpuctl.model.usage import SYSFS_SOURCE


class Amd(Maker):
    """AMD."""

    name = "AMD"
    vendor_id = "1002"
    vgpu_driver = "gim"
    own_vf_setting = "set vf_num in /etc/modprobe.d (options gim vf_num=N) or /etc/gim_config, then reload gim"
    usage_tool = "amd-smi"

    def usage_source(self, driver: str) -> str | None:
        """Return amd-smi of the virtualisation build for gim, whose cards have no use in sysfs as amdgpu's have."""
        return self.usage_tool if driver == self.vgpu_driver else SYSFS_SOURCE
