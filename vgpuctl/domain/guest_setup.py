# SPDX-License-Identifier: Apache-2.0
"""What vgpuctl sets up inside a guest: a script from the package's templates, for cloud-init or for Windows.

For cloud-init it is the seed's vendor-data, because user-data is the user's. It is a script and not a cloud-config:
where user-data has the same keys (runcmd, write_files), cloud-init drops those of vendor-data (its
doc/rtd/explanation/vendordata.rst and merging.rst). `#cloud-boothook` runs at each boot
(doc/rtd/explanation/format/cloud-boothook.rst).

For Windows it is a script of PowerShell, which the seed's answer file has run at each boot (`domain.answer_file`).
"""

from __future__ import annotations

import hashlib
import posixpath

from vgpuctl.config.guest_drivers import parse_driver_name
from vgpuctl.domain.answer_file import ANSWER_FILE, SCRIPT_FILE, build_answer_file
from vgpuctl.domain.text_templates import read_template, render_text
from vgpuctl.model.guest_driver import DISC_LABEL
from vgpuctl.model.guest_sharing import GuestSharing, SharingMethod
from vgpuctl.model.license import VGPU_FEATURE
from vgpuctl.model.request import GuestSetup

DIRECTORY = "guest"
_VENDOR_DATA = "vendor-data"
_HELPER, _WINDOWS_HELPER = "vgpuctl_guest.py", "vgpuctl_guest.ps1"
_WINDOWS_HELPER_FILE = "vgpuctl-guest.ps1"
SCRIPT_FILES = (_VENDOR_DATA, SCRIPT_FILE)
"""The files of a seed that may be the script; it has one of them."""
SETUP_FILES = (*SCRIPT_FILES, ANSWER_FILE, _WINDOWS_HELPER_FILE)
"""The files of a seed that are vgpuctl's."""
_SECRET_MARKS = {
    "license": ("/etc/nvidia/ClientConfigToken/client_configuration_token_vgpuctl.tok", "function Set-License"),
    "k8s_join": ("kind: JoinConfiguration", "/etc/rancher/k3s/config.yaml.d/50-vgpuctl-join.yaml"),
    "domain_join": ("function Complete-DomainJoin",),
}
"""What a script has in it with the secret of a field; that of `domain_join` is in the answer file."""
_UNREAD = "# Written while the guest ran: it has not read this yet."


def setup_files(setup: GuestSetup, *, replaces: bool = False, unread: bool = False) -> dict[str, str]:
    """Return the texts that set up a guest, by the names of the files of its seed; as `setup_script` has it."""
    script = setup_script(setup, replaces=replaces, unread=unread)
    if script is None:
        return {}
    if not setup.for_windows:
        return {_VENDOR_DATA: script}
    helper = {_WINDOWS_HELPER_FILE: read_template(DIRECTORY, _WINDOWS_HELPER)} if setup.guest_helper else {}
    return {SCRIPT_FILE: script, ANSWER_FILE: build_answer_file(_blob(setup)), **helper}


def setup_script(setup: GuestSetup, *, replaces: bool = False, unread: bool = False) -> str | None:
    """Return the script that sets up a guest; None if nothing is set up there.

    `replaces`: the guest has had such a script, and this one takes back what is not wanted any more, but no license.
    `unread`: it is written while the guest runs, which reads it at its next boot.
    """
    if not setup.fields and not replaces:
        return None
    values = {"what": _describe(setup), "license": setup.license, "driver": setup.guest_driver, "unread": unread}
    values["off_after_setup"] = setup.off_after_setup
    if setup.for_windows:
        return render_text(DIRECTORY, "setup.ps1.j2", {**values, **_windows_values(setup)})
    sharing = setup.guest_sharing
    helper = read_template(DIRECTORY, _HELPER).rstrip("\n") if setup.guest_helper else None
    node = {} if sharing is None else {"config": config_name(sharing), "labels": node_labels(sharing), "has_mig": False}
    return render_text(
        DIRECTORY, "setup.sh.j2", {**values, "join": setup.k8s_join, "sharing": sharing, "helper": helper, **node}
    )


def secrets_in(script: str | None) -> frozenset[str]:
    """Return the fields whose secrets a script has in it."""
    marks = {} if script is None else _SECRET_MARKS
    return frozenset(field for field, texts in marks.items() if any(text in (script or "") for text in texts))


def is_unread(script: str | None) -> bool:
    """Return whether a script was written while the guest ran."""
    return script is not None and _UNREAD in script


def device_plugin_config(sharing: GuestSharing | None, *, has_mig: bool = False) -> str:
    """Return the manifest of a ConfigMap with the configuration of NVIDIA's device plugin for such a node.

    Its only key is the configuration's name (`config_name`). `has_mig`: the node's GPUs are divided into GPU instances,
    each of which is a resource of its own.
    """
    values = {"config": config_name(sharing, has_mig=has_mig), "sharing": sharing, "has_mig": has_mig}
    return render_text(DIRECTORY, "device-plugin-config-map.yaml.j2", values)


def _describe(setup: GuestSetup) -> str:
    """Return what a script is for: of the driver only the file's name, because a path may have quotes in it."""
    return " and ".join(map(posixpath.basename, setup.fields)) or "nothing any more"


def _windows_values(setup: GuestSetup) -> dict[str, object]:
    """Return what only the script for Windows needs."""
    license, driver = setup.license, setup.guest_driver
    helper = read_template(DIRECTORY, _WINDOWS_HELPER).encode() if setup.guest_helper else None
    return {
        "whole_gpu": license is not None and license.feature != VGPU_FEATURE,
        "helper_sha256": None if helper is None else hashlib.sha256(helper).hexdigest(),
        "driver_version": None if driver is None else parse_driver_name(driver).version,
        "disc_label": DISC_LABEL,
        "joins_domain": bool(_blob(setup)),
    }


def _blob(setup: GuestSetup) -> str:
    return "" if setup.domain_join is None else setup.domain_join.blob


def config_name(sharing: GuestSharing | None, *, has_mig: bool = False) -> str:
    """Return the name of the device plugin's configuration: the same on all nodes whose GPUs are shared so.

    `default` is the one that the plugin takes for a node without the label nvidia.com/device-plugin.config
    (NVIDIA/k8s-device-plugin, cmd/config-manager).
    """
    if has_mig:
        return "vgpuctl-mig-mixed"
    return "default" if sharing is None else f"vgpuctl-{sharing.method}-{sharing.replicas}"


def node_labels(sharing: GuestSharing) -> list[str]:
    """Return the labels of a node of Kubernetes that the device plugin needs, as `KEY=VALUE`."""
    labels = ["nvidia.com/gpu.present=true", f"nvidia.com/device-plugin.config={config_name(sharing)}"]
    return labels + (["nvidia.com/mps.capable=true"] if sharing.method is SharingMethod.MPS else [])
