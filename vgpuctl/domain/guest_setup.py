# SPDX-License-Identifier: Apache-2.0
"""What vgpuctl sets up inside a guest: a script for cloud-init, from the package's templates.

It is the seed's vendor-data, because user-data is the user's. It is a script and not a cloud-config: where user-data
has the same keys (runcmd, write_files), cloud-init drops those of vendor-data (its doc/rtd/explanation/vendordata.rst
and merging.rst). `#cloud-boothook` runs at each boot (doc/rtd/explanation/format/cloud-boothook.rst).
"""

from __future__ import annotations

from vgpuctl.domain.text_templates import render_text
from vgpuctl.model.guest_sharing import GuestSharing, SharingMethod
from vgpuctl.model.request import CloudInit
from vgpuctl.version import __version__

DIRECTORY = "guest"


def setup_script(files: CloudInit) -> str | None:
    """Return the script that sets up a guest's license and how its programs share its GPU; None for neither."""
    if not files.fields:
        return None
    values = {"version": __version__, "sources": files.fields, "license": files.license, "sharing": files.sharing}
    node = {} if files.sharing is None else _node_values(files.sharing)
    return render_text(DIRECTORY, "setup.sh.j2", {**values, **node})


def _node_values(sharing: GuestSharing) -> dict[str, object]:
    """Return what a node of Kubernetes gets: its labels, and the name of the device plugin's configuration.

    The name is the same on all nodes whose GPUs are shared so.
    """
    config = f"vgpuctl-{sharing.method}-{sharing.replicas}"
    labels = ["nvidia.com/gpu.present=true", f"nvidia.com/device-plugin.config={config}"]
    labels += ["nvidia.com/mps.capable=true"] if sharing.method is SharingMethod.MPS else []
    return {"config": config, "labels": labels}
