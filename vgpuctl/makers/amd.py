# SPDX-License-Identifier: Apache-2.0
"""AMD: plain VFs, whose number its driver gim takes from its own configuration alone.

Source: amd/MxGPU-Virtualization, gim_shim: gim has no sriov_configure, so a write of sriov_numvfs fails (ENOENT).
"""

from __future__ import annotations

from vgpuctl.makers.maker import Maker


class Amd(Maker):
    """AMD."""

    name = "AMD"
    vendor_id = "1002"
    vgpu_driver = "gim"
    own_vf_setting = "set vf_num in /etc/modprobe.d (options gim vf_num=N) or /etc/gim_config, then reload gim"
