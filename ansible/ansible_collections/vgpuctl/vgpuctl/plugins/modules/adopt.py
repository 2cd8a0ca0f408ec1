#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""VMs of other programs that vgpuctl manages as they are: `vgpuctl adopt`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: adopt
short_description: Manage VMs that other programs made with a vGPU, or let them go
version_added: 0.1.0
description:
  - Adopts VMs that another program made with an mdev, a virtual function or a whole GPU. vgpuctl writes its record into
    the VM's metadata and claims the devices. Nothing restarts, and nothing else of the VM changes.
  - From then on vgpuctl creates the vGPU again after a boot, and no other VM gets its place.
  - A device that another VM has, that does not exist now, or that mdevctl creates at each boot is an error. Its hint
    has the command that helps.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes
options:
  name:
    type: str
    description:
      - The VM's name, or a pattern such as V(old-*). Specify either O(name) or O(all).
  all:
    type: bool
    description:
      - Every VM with a device to adopt; with O(state=released) every adopted VM. A host without such VMs is unchanged.
  state:
    type: str
    default: adopted
    choices: [adopted, released]
    description:
      - V(adopted) adopts VMs that are not managed yet.
      - V(released) lets adopted VMs go. vgpuctl forgets them; the VMs and their vGPUs stay as they are. A VM that
        vgpuctl created is refused.
seealso:
  - module: vgpuctl.vgpuctl.vm_info
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Adopt a VM of virt-manager
  vgpuctl.vgpuctl.adopt:
    name: old-desktop

- name: Adopt every VM with a vGPU
  vgpuctl.vgpuctl.adopt:
    all: true

- name: Let the VM go
  vgpuctl.vgpuctl.adopt:
    name: old-desktop
    state: released
"""

RETURN = r"""
vm:
  description: The VM, as in C(vgpuctl show-vm --json). With a pattern or O(all) its C(targets), one for each VM with
    its C(name), C(changed) and C(data). In check mode as it is now.
  returned: success
  type: dict
  sample:
    name: old-desktop
    ownership: managed
    vgpus: [{profile: T4-4Q, gpu: '0000:5e:00.0', carrier: 0d77c06c-a6a1-4c06-ab36-267c38df4355}]
steps:
  description: The steps done, or in check mode the steps that would be done.
  returned: success
  type: list
  elements: str
  sample: ['claim 0000:5e:00.0 on GPU 0000:5e:00.0 for T4-4Q', record that old-desktop has 1 vGPU]
notes:
  description: Notes about the result.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import COMMON, change


def main() -> None:
    """Hand the name over; vgpuctl finds out whether there is something to do."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str"},
            "all": {"type": "bool"},
            "state": {"type": "str", "default": "adopted", "choices": ["adopted", "released"]},
            **COMMON,
        },
        required_one_of=[("name", "all")],
        mutually_exclusive=[("name", "all")],
        supports_check_mode=True,
    )
    release = ["--release"] if module.params["state"] == "released" else []
    if not module.params["all"] and module.params["name"] is None:
        module.fail_json(msg="name: missing, and all is not true: specify one of them", code="invalid-input")
    if module.params["all"]:
        change(module, ["adopt", *release, "--all"], name="vm", absent={"targets": [], "steps": [], "notes": []})
    change(module, ["adopt", *release, "--", module.params["name"]], name="vm")


if __name__ == "__main__":
    main()
