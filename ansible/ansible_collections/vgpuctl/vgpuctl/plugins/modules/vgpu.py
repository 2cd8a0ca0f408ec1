#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A vGPU without a VM: `vgpuctl ensure-vgpu`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vgpu
short_description: Ensure that a vGPU without a VM exists, or does not
version_added: 0.1.0
description:
  - Creates a vGPU for VMs of virsh and virt-install. It is recorded in C(/etc/vgpuctl/host.yaml) and recreated after a
    boot.
  - If the vGPU exists with another profile, or on another GPU, the task fails.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes
  - vgpuctl.vgpuctl.options.vgpu
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Create a vGPU for a VM of virt-install
  vgpuctl.vgpuctl.vgpu:
    name: lab
    profile: A16-2Q
    gpu: '0000:17:00.0'
  register: lab

- name: Save the element for the VM's definition
  ansible.builtin.copy:
    content: "{{ lab.vgpu.hostdev }}"
    dest: /root/lab.xml
    mode: '0600'

- name: Remove the vGPU
  vgpuctl.vgpuctl.vgpu:
    name: lab
    state: absent
"""

RETURN = r"""
vgpu:
  description: The vGPU, as in C(vgpuctl list-vgpus --json).
  returned: success
  type: dict
  sample: {name: lab, profile: A16-2Q, gpu: '0000:17:00.0', present: true}
steps:
  description: The steps done, or in check mode the steps that would be done.
  returned: success
  type: list
  elements: str
  sample: [create vGPU A16-2Q on 0000:17:00.4]
notes:
  description: Notes about the result.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.options import VGPU
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import COMMON, change, flags, text_of


def main() -> None:
    """Hand the options over; vgpuctl finds out whether there is something to do."""
    module = AnsibleModule(argument_spec={**VGPU, **COMMON}, supports_check_mode=True)
    named = {option: text_of(module, option, module.params[option]) for option in ("gpu", "not_gpu")}
    params = {**module.params, **named}
    params["vgpu_param"] = [f"{key}={value}" for key, value in (params["vgpu_params"] or {}).items()]
    options = [option for option in VGPU if option not in ("name", "vgpu_params")]
    change(module, ["ensure-vgpu", *flags(params, *options, "vgpu_param"), "--", params["name"]], name="vgpu")


if __name__ == "__main__":
    main()
