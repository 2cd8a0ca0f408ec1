#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who may what with a pool or a fleet: `vgpuctl controller entitle` and `revoke`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: entitlement
short_description: Ensure what a person or a group may do
version_added: 0.3.0
description:
  - Gives a person, a group or everybody a right on a pool, or a role in the fleet, instead of the former one.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes.fleet
options:
  who:
    type: str
    required: true
    description: A person's name, V(@GROUP), or V(everybody) who can sign in.
  right:
    type: str
    choices: [use, operate, manage, viewer, operator, admin]
    description:
      - With O(pool) V(use), V(operate) or V(manage).
      - Without it a role in the fleet, V(viewer), V(operator) or V(admin).
      - Needed unless O(state=absent).
  pool:
    type: str
    description: The pool on which the right holds.
  state:
    type: str
    default: present
    choices: [present, absent]
    description: V(absent) takes it back. Desktops that people have stay theirs until they are released.
seealso:
  - module: vgpuctl.vgpuctl.person
  - module: vgpuctl.vgpuctl.pool
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Let the staff take desktops
  vgpuctl.vgpuctl.entitlement:
    who: '@staff'
    right: use
    pool: office
"""

RETURN = r"""
entitlement:
  description: Who may what, as in C(vgpuctl controller list-entitlements --json). Empty if there was nothing.
  returned: success
  type: dict
  sample: {who: '@staff', right: use, pool: office}
steps:
  description: The calls that changed something, or in check mode would.
  returned: success
  type: list
  elements: str
  sample: ['entitle @staff']
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.fleet import CONTROLLER, Fleet
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import flags

KEYS = ("who", "right", "pool")


def main() -> None:
    """Hand the options over."""
    module = AnsibleModule(
        argument_spec={
            "who": {"type": "str", "required": True},
            "right": {"type": "str", "choices": ["use", "operate", "manage", "viewer", "operator", "admin"]},
            "pool": {"type": "str"},
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            **CONTROLLER,
        },
        required_if=[("state", "present", ("right",))],
        supports_check_mode=True,
    )
    fleet, params = Fleet(module), module.params
    who, on = params["who"], flags(params, "pool")
    rows = fleet.read("list-entitlements", *on)
    before = next((one for one in rows if (one["who"], one["pool"]) == (who, params["pool"])), {})
    if params["state"] == "absent":
        if before:
            fleet.change("revoke", *on, "--", who)
        fleet.end("entitlement", before, {}, KEYS)
    after = fleet.change("entitle", *on, "--", who, params["right"])
    fleet.end("entitlement", before, after, KEYS)


if __name__ == "__main__":
    main()
