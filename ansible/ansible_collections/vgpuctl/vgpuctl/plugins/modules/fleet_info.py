#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a controller has: `vgpuctl controller list-hosts`, `list-pools`, `list-images` and `list-desktops`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_info
short_description: Tell the hosts, pools, images and desktops of a controller
version_added: 0.3.0
description:
  - A token of the role C(viewer) suffices.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes.fleet_info
options:
  gather:
    type: list
    elements: str
    choices: [hosts, pools, images, desktops]
    default: [hosts, pools, images, desktops]
    description: What to ask for.
  host:
    type: str
    description: Only this host, and the desktops on it; of one that is not there, desktops are an error.
  pool:
    type: str
    description: Only this pool, and its desktops; of one that is not there, desktops are an error.
  user:
    type: str
    description: Only desktops of this user.
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Wait until no user has a desktop on a host that is drained
  vgpuctl.vgpuctl.fleet_info:
    gather: [desktops]
    host: gpu02
  register: fleet
  until: fleet.desktops | length == 0
  retries: 60
  delay: 60

- name: Pools that errors paused
  vgpuctl.vgpuctl.fleet_info:
    gather: [pools]
  register: fleet
  failed_when: fleet.pools | selectattr('state', 'eq', 'paused') | length > 0
"""

RETURN = r"""
hosts:
  description: The hosts by name, as in C(vgpuctl controller list-hosts --json).
  returned: if asked for
  type: list
  elements: dict
  sample: [{name: gpu02, state: active, held: null, problem: null, labels: {site: berlin}, desktops: 12}]
pools:
  description: The pools by name, as in C(vgpuctl controller list-pools --json).
  returned: if asked for
  type: list
  elements: dict
  sample: [{name: office, state: active, ready: 5, assigned: 12, maximum: 40}]
images:
  description: The images by name, as in C(vgpuctl controller list-images --json).
  returned: if asked for
  type: list
  elements: dict
  sample: [{name: office, path: /srv/images/office-11.qcow2, pools: [office]}]
desktops:
  description: The desktops by name, as in C(vgpuctl controller list-desktops --json).
  returned: if asked for
  type: list
  elements: dict
  sample: [{name: office-001, pool: office, phase: in-use, user: ada, host: gpu02, address: 10.0.0.7}]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.fleet import CONTROLLER, Fleet
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import flags

KINDS = ["hosts", "pools", "images", "desktops"]


def main() -> None:
    """Ask for each kind."""
    module = AnsibleModule(
        argument_spec={
            "gather": {"type": "list", "elements": "str", "choices": KINDS, "default": KINDS},
            "host": {"type": "str"},
            "pool": {"type": "str"},
            "user": {"type": "str"},
            **CONTROLLER,
        },
        supports_check_mode=True,
    )
    fleet, params = Fleet(module), module.params
    names = {"hosts": params["host"], "pools": params["pool"]}
    on = {"pool": params["pool"], "on": params["host"], "user": params["user"]}
    found = {}
    for kind in params["gather"]:
        rows = fleet.read(f"list-{kind}", *(flags(on, *on) if kind == "desktops" else ()))
        found[kind] = [row for row in rows if names.get(kind) in (None, row["name"])]
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
