#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The VMs of a host: `vgpuctl list-vms` and `vgpuctl show-vm`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vm_info
short_description: Tell the VMs of a host with their vGPUs
version_added: 0.1.0
description:
  - VMs that vgpuctl did not create are listed too, with the ownership V(unmanaged).
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes.info
options:
  name:
    type: str
    description:
      - Only this one, by name or uuid, with its disks. An empty list when there is no such VM.
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Every VM
  vgpuctl.vgpuctl.vm_info:
  register: found

- name: One VM
  vgpuctl.vgpuctl.vm_info:
    name: vdi-001
"""

RETURN = r"""
vms:
  description: The VMs, as C(vgpuctl list-vms --json) or C(vgpuctl show-vm --json) shows them.
  returned: success
  type: list
  elements: dict
  sample: [{name: vdi-001, state: running, ownership: managed, vgpus: [{profile: A100-4C}]}]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import PROGRAM, ask


def main() -> None:
    """Ask for one VM or for all."""
    module = AnsibleModule(argument_spec={"name": {"type": "str"}, **PROGRAM}, supports_check_mode=True)
    if module.params["name"] is None:
        module.exit_json(changed=False, vms=ask(module, ["list-vms"])["data"])
    found = ask(module, ["show-vm", "--", module.params["name"]], absent={})["data"]
    module.exit_json(changed=False, vms=[found] if found else [])


if __name__ == "__main__":
    main()
