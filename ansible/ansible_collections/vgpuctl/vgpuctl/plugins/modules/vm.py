#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A VM with a vGPU, or several alike: `vgpuctl ensure-vm`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vm
short_description: Ensure that a VM with a vGPU exists, or does not
version_added: 0.1.0
description:
  - Creates and starts a VM with a vGPU, plain virtual functions or whole GPUs, unless it exists and matches.
  - Changes state, labels and owner of an existing VM in place. While the VM is off it also changes what
    C(vgpuctl set-vm --help) lists; for a running VM the hint is the C(vgpuctl set-vm) that restarts it. Any other
    difference is refused and shown; a VM is never rebuilt.
  - For a VM that exists O(name) is enough.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes
  - vgpuctl.vgpuctl.options.vm
options:
  name:
    type: str
    required: true
    description:
      - The VM's name. With O(count) a pattern such as V(vdi-{:03}).
  state:
    type: str
    default: present
    choices: [present, absent, started, stopped]
    description:
      - V(present) creates and starts a missing VM, and leaves an existing one on or off.
      - V(absent) removes the VM with its vGPUs and the disks that were created for it, without asking.
  count:
    type: int
    description:
      - Works on the N VMs of the pattern, numbered from 1. Missing ones are created only if all of them fit.
      - V(present), V(started) and V(stopped) of O(state) ensure that they exist; V(absent) deletes those that do.
      - A smaller number deletes nothing.
  parallel:
    type: int
    description:
      - With O(count), how many VMs are worked on at the same time. Without it, 4.
seealso:
  - module: vgpuctl.vgpuctl.vm_info
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: A desktop with an A100-4C
  vgpuctl.vgpuctl.vm:
    name: vdi-001
    profile: A100-4C
    image: /var/lib/libvirt/images/debian.qcow2
    memory: 8GiB

- name: A hundred desktops, on one GPU; the address is quoted, because YAML reads some as numbers
  vgpuctl.vgpuctl.vm:
    name: 'vdi-{:03}'
    count: 100
    profile: A16-1Q
    gpu: '0000:3b:00.0'

- name: The hundred desktops are off
  vgpuctl.vgpuctl.vm:
    name: 'vdi-{:03}'
    count: 100
    state: stopped

- name: They are gone, with their vGPUs and disks
  vgpuctl.vgpuctl.vm:
    name: 'vdi-{:03}'
    count: 100
    state: absent

- name: A VM with four whole H100, near each other
  vgpuctl.vgpuctl.vm:
    name: train-1
    mode: passthrough
    gpu: H100
    gpus: 4

- name: Another profile for a VM that is off
  vgpuctl.vgpuctl.vm:
    name: vdi-001
    profile: A100-8C

- name: The VM is gone, with its vGPU and disk
  vgpuctl.vgpuctl.vm:
    name: vdi-001
    state: absent
"""

RETURN = r"""
vm:
  description: The VM as C(vgpuctl show-vm --json) shows it, or with O(count) its C(vms), each with its
    C(result) (V(created), V(started), V(stopped), V(deleted) or V(unchanged)). In check mode as it is now.
  returned: success
  type: dict
  sample:
    name: vdi-001
    state: running
    vgpus: [{profile: A100-4C, gpu: '0000:3b:00.0', carrier: '0000:3b:00.4'}]
steps:
  description: What was done, or in check mode what would be.
  returned: success
  type: list
  elements: str
  sample: [create vGPU A100-4C on 0000:3b:00.4 (type 468), start VM vdi-001]
notes:
  description: What there is to know about it.
  returned: success
  type: list
  elements: str
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.options import VM
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import COMMON, change, flags, text_of

STATES = ["present", "absent", "started", "stopped"]


def main() -> None:
    """Hand the spec over as JSON; vgpuctl finds what is missing, refuses, plans and does it."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "default": "present", "choices": STATES},
            "count": {"type": "int"},
            "parallel": {"type": "int"},
            **VM,
            **COMMON,
        },
        supports_check_mode=True,
    )
    named = {option: text_of(module, option, module.params[option]) for option in ("gpu", "not_gpu")}
    params = {**module.params, **named}
    spec = {name: params[name] for name in ("name", *VM) if params[name] is not None}
    change(
        module, ["ensure-vm", "--file", "-", *flags(params, "state", "count", "parallel")], json.dumps(spec), name="vm"
    )


if __name__ == "__main__":
    main()
