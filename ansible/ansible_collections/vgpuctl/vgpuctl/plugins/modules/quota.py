#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How much people may have: `vgpuctl controller ensure-quota` and `delete-quota`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: quota
short_description: Ensure how much people may have of a fleet
version_added: 0.3.0
description:
  - Limits what a person, each one of a group, or everybody may have in all pools together.
  - A person's own quota decides, else those of his groups, else everybody's. What is not given is not limited.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes.fleet
options:
  who:
    type: str
    required: true
    description: A person's name, V(@GROUP), or V(everybody).
  desktops:
    type: int
    description: So many desktops at most.
  running:
    type: int
    description: So many desktops that run at most.
  gpu:
    type: str
    description: So much GPU memory of all vGPUs of a person's desktops at most, such as V(16GiB).
  state:
    type: str
    default: present
    choices: [present, absent]
    description: V(absent) deletes the quota. Nobody loses what he has.
seealso:
  - module: vgpuctl.vgpuctl.entitlement
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Two desktops and 16 GiB for each person
  vgpuctl.vgpuctl.quota:
    who: everybody
    desktops: 2
    gpu: 16GiB
"""

RETURN = r"""
quota:
  description: The quota, as in C(vgpuctl controller list-quotas --json). Empty if there is none.
  returned: success
  type: dict
  sample: {who: everybody, desktops: 2, running: null, gpu_mib: 16384}
steps:
  description: The calls that changed something, or in check mode would.
  returned: success
  type: list
  elements: str
  sample: ['ensure-quota everybody']
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.fleet import CONTROLLER, Fleet
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import flags

KEYS = ("who", "desktops", "running", "gpu_mib")


def main() -> None:
    """Hand the options over."""
    module = AnsibleModule(
        argument_spec={
            "who": {"type": "str", "required": True},
            "desktops": {"type": "int"},
            "running": {"type": "int"},
            "gpu": {"type": "str"},
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            **CONTROLLER,
        },
        required_if=[("state", "present", ("desktops", "running", "gpu"), True)],
        supports_check_mode=True,
    )
    fleet, params = Fleet(module), module.params
    who = params["who"]
    before = next((one for one in fleet.read("list-quotas") if one["who"] == who), {})
    if params["state"] == "absent":
        if before:
            fleet.change("delete-quota", "--", who)
        fleet.end("quota", before, {}, KEYS)
    after = fleet.change("ensure-quota", *flags(params, "desktops", "running", "gpu"), "--", who)
    fleet.end("quota", before, after, KEYS)


if __name__ == "__main__":
    main()
