# SPDX-License-Identifier: Apache-2.0
"""What vgpuctl sets up inside a guest: a script for cloud-init, from the package's templates.

It is the seed's vendor-data, because user-data is the user's. It is a script and not a cloud-config: where user-data
has the same keys (runcmd, write_files), cloud-init drops those of vendor-data (its doc/rtd/explanation/vendordata.rst
and merging.rst). `#cloud-boothook` runs at each boot (doc/rtd/explanation/format/cloud-boothook.rst).
"""

from __future__ import annotations

from vgpuctl.domain.text_templates import read_template, render_text
from vgpuctl.model.guest_sharing import GuestSharing, SharingMethod
from vgpuctl.model.request import GuestSetup

DIRECTORY = "guest"
_SECRET_MARKS = {
    "license": ("/etc/nvidia/ClientConfigToken/client_configuration_token_vgpuctl.tok",),
    "k8s_join": ("kind: JoinConfiguration", "/etc/rancher/k3s/config.yaml.d/50-vgpuctl-join.yaml"),
}
"""What a script has in it with the secret of a field."""
_UNREAD = "# Written while the guest ran: it has not read this yet."


def setup_script(setup: GuestSetup, *, replaces: bool = False, unread: bool = False) -> str | None:
    """Return the script that sets up a guest; None if nothing is set up there.

    `replaces`: the guest has had such a script, and this one takes back what is not wanted any more, but no license.
    `unread`: it is written while the guest runs, which reads it at its next boot.
    """
    if not setup.fields and not replaces:
        return None
    sharing = setup.guest_sharing
    values = {
        "what": " and ".join(setup.fields) or "guest_sharing none",
        "license": setup.license,
        "join": setup.k8s_join,
        "driver": setup.guest_driver,
        "sharing": sharing,
        "helper": read_template(DIRECTORY, "vgpuctl_guest.py").rstrip("\n") if setup.guest_helper else None,
        "unread": unread,
    }
    node = {} if sharing is None else _node_values(sharing)
    return render_text(DIRECTORY, "setup.sh.j2", {**values, **node})


def secrets_in(script: str | None) -> frozenset[str]:
    """Return the fields whose secrets a script has in it."""
    marks = {} if script is None else _SECRET_MARKS
    return frozenset(field for field, texts in marks.items() if any(text in (script or "") for text in texts))


def is_unread(script: str | None) -> bool:
    """Return whether a script was written while the guest ran."""
    return script is not None and _UNREAD in script


def _node_values(sharing: GuestSharing) -> dict[str, object]:
    """Return what a node of Kubernetes gets: its labels, and the name of the device plugin's configuration.

    The name is the same on all nodes whose GPUs are shared so.
    """
    config = f"vgpuctl-{sharing.method}-{sharing.replicas}"
    labels = ["nvidia.com/gpu.present=true", f"nvidia.com/device-plugin.config={config}"]
    labels += ["nvidia.com/mps.capable=true"] if sharing.method is SharingMethod.MPS else []
    return {"config": config, "labels": labels}
