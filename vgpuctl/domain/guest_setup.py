# SPDX-License-Identifier: Apache-2.0
"""What vgpuctl sets up inside a guest: a script for cloud-init, from the package's templates.

It is the seed's vendor-data, because user-data is the user's. It is a script and not a cloud-config: where user-data
has the same keys (runcmd, write_files), cloud-init drops those of vendor-data (its doc/rtd/explanation/vendordata.rst
and merging.rst). `#cloud-boothook` runs at each boot (doc/rtd/explanation/format/cloud-boothook.rst).
"""

from __future__ import annotations

from vgpuctl.domain.text_templates import render_text
from vgpuctl.model.guest_sharing import GuestSharing, SharingMethod
from vgpuctl.version import __version__

DIRECTORY = "guest"


def setup_script(sharing: GuestSharing) -> str:
    """Return the script that sets up how the programs of a guest share its GPU."""
    labels = ["nvidia.com/gpu.present=true", f"nvidia.com/device-plugin.config={_config_name(sharing)}"]
    if sharing.method is SharingMethod.MPS:
        labels.append("nvidia.com/mps.capable=true")
    values = {"version": __version__, "sharing": sharing, "config": _config_name(sharing), "labels": labels}
    return render_text(DIRECTORY, "setup.sh.j2", values)


def _config_name(sharing: GuestSharing) -> str:
    """Return a name for the configuration of the device plugin, the same on all nodes that share a GPU so."""
    return f"vgpuctl-{sharing.method}-{sharing.replicas}"
