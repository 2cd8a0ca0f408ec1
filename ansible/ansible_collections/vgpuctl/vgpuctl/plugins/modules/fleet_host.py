#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A GPU host of a controller: `vgpuctl controller add-host`, `label-host`, `drain-host`, `remove-host` and others."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_host
short_description: Register a GPU host at a controller
version_added: 0.3.0
description:
  - It asks the controller, and changes nothing on the GPU host. The role P(vgpuctl.vgpuctl.fleet_host#role) prepares
    the host for it.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes.fleet
options:
  name:
    type: str
    required: true
    description: The host's name in the fleet.
  address:
    type: str
    description:
      - V(local), the agent of the controller's own machine, or V(ssh://USER@HOST[:PORT]). Needed for a new host.
      - The controller must reach the host's agent there. The address of a host never changes.
  host_key:
    type: str
    description:
      - The SSH key that the host must have, V(SHA256:...), or its type, a space and that.
      - Without it, the one that known_hosts of the controller's user has. A host that has another key in the fleet is
        an error.
  labels:
    type: dict
    description: All labels of the host; pools choose hosts by them. Without it they stay as they are.
  state:
    type: str
    default: present
    choices: [present, active, cordoned, draining, absent]
    description:
      - V(present) leaves a host active, cordoned or draining as it is.
      - V(cordoned) makes no new desktops there. V(draining) also moves those without a user to other hosts.
        V(active) ends both.
      - V(absent) removes a host without desktops from the fleet.
  live:
    type: bool
    default: false
    description:
      - With V(draining), desktops with a user, and those of fixed pools, also move to other hosts, while they run.
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Add a host
  vgpuctl.vgpuctl.fleet_host:
    name: gpu02
    address: ssh://fleet@gpu02.example.org
    host_key: ssh-ed25519 SHA256:EAxRSbVzWhJEbBy24/nVJCbY7bFpyXUOgUiDl2NoiCg
    labels: {site: berlin}

- name: Empty it for work on it, while users work
  vgpuctl.vgpuctl.fleet_host:
    name: gpu02
    state: draining
    live: true
"""

RETURN = r"""
host:
  description: The host, as in C(vgpuctl controller show-host --json). Empty if there is none.
  returned: success
  type: dict
  sample: {name: gpu02, address: 'ssh://fleet@gpu02.example.org', state: active, labels: {site: berlin}, desktops: 12}
steps:
  description: The calls that changed something, or in check mode would.
  returned: success
  type: list
  elements: str
  sample: [add-host gpu02]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.fleet import CONTROLLER, Fleet
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import flags

COMPARED = ("address", "state", "moves_live", "labels")
STATE_CALLS = {"active": "uncordon-host", "cordoned": "cordon-host", "draining": "drain-host"}


def main() -> None:
    """Add the host if the controller has none of this name, then set what differs."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "address": {"type": "str"},
            "host_key": {"type": "str", "no_log": False},  # a fingerprint of its public key
            "labels": {"type": "dict"},
            "state": {"type": "str", "default": "present", "choices": ["present", *STATE_CALLS, "absent"]},
            "live": {"type": "bool", "default": False},
            **CONTROLLER,
        },
        supports_check_mode=True,
    )
    if module.params["live"] and module.params["state"] != "draining":
        module.fail_json(msg="live: it needs state: draining", code="invalid-input")
    fleet, params, name = Fleet(module), module.params, ["--", module.params["name"]]
    labels = None if params["labels"] is None else [f"{key}={value}" for key, value in params["labels"].items()]
    before = fleet.read("show-host", *name, absent={})
    if params["state"] == "absent":
        fleet.change("remove-host", *name, absent={})
        fleet.end("host", before, {}, COMPARED)
    if before:
        refuse_another_host(module, before)
        after = before if labels is None else fleet.change("label-host", *name, *labels)
    else:
        if params["address"] is None:
            fleet.read("show-host", *name)
        given = flags({"host_key": params["host_key"], "label": labels}, "host_key", "label")
        after = fleet.change("add-host", *given, *name, params["address"])
    if params["state"] in STATE_CALLS and (before or not module.check_mode):
        how = ["--live"] if params["live"] else []
        after = {**fleet.change(STATE_CALLS[params["state"]], *how, *name), "labels": after["labels"]}
    elif params["state"] not in ("present", after["state"]):  # the host that the call would be about is not added
        fleet.note(STATE_CALLS[params["state"]])
        after = {**after, "state": params["state"]}
    fleet.end("host", before, after, COMPARED)


def refuse_another_host(module: AnsibleModule, host: dict) -> None:
    """End the module if the fleet has a host of this name with another address or SSH key."""
    name, address, key = (module.params[option] for option in ("name", "address", "host_key"))
    if address not in (None, host["address"]):
        module.fail_json(
            msg=f"host {name} is in the fleet at {host['address']}, not at {address}. state: absent removes it first",
            code="other-address",
            facts={"address": host["address"]},
        )
    if key is not None and (host["host_key"] or key).split()[-1] != key.split()[-1]:
        hint = f"vgpuctl controller accept-host {name} --host-key {key.split()[-1]}"
        module.fail_json(
            msg=f"host {name} has the SSH key {host['host_key']} in the fleet, not {key}\nhint: if it is right: {hint}",
            code="other-key",
            hint=hint,
            facts={"host_key": host["host_key"]},
        )


if __name__ == "__main__":
    main()
