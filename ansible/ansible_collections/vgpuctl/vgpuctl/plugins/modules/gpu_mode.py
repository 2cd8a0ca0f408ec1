#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a GPU is set up for: `vgpuctl set-mode`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_mode
short_description: Set a GPU up for vGPUs, plain virtual functions or passthrough
version_added: 0.1.0
description:
  - Turns the GPU's virtual functions on or off as the mode requires, and writes the mode to
    C(/etc/vgpuctl/host.yaml).
  - It changes nothing while a VM uses the GPU, or has a vGPU there that would be lost.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes
  - vgpuctl.vgpuctl.options.gpu_mode
seealso:
  - module: vgpuctl.vgpuctl.host
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Turn on the virtual functions of an NVIDIA GPU
  vgpuctl.vgpuctl.gpu_mode:
    gpu: '0000:17:00.0'
    mode: vgpu

- name: Create four plain virtual functions
  vgpuctl.vgpuctl.gpu_mode:
    gpu: '0000:86:00.0'
    mode: sriov
    vfs: 4

- name: Every GPU of the host is for vGPUs
  vgpuctl.vgpuctl.gpu_mode:
    all: true
    mode: vgpu
"""

RETURN = r"""
gpu:
  description: The GPU, as in C(vgpuctl show-gpu --json). In check mode, its current state.
    With O(all) its C(targets), one for each GPU with its C(name), C(changed) and C(data).
  returned: success
  type: dict
  sample: {address: '0000:17:00.0', mode: vgpu, vfs: {total: 16, enabled: 16, used: 0}}
steps:
  description: The steps done, or in check mode the steps that would be done.
  returned: success
  type: list
  elements: str
  sample: ['turn the 16 VFs of 0000:17:00.0 on (sriov-manage)']
notes:
  description: Notes about the result.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.options import GPU_MODE
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import (
    COMMON,
    ONE_GPU_OR_ALL,
    change,
    flags,
    gpu_words,
)


def main() -> None:
    """Hand the options over."""
    module = AnsibleModule(argument_spec={**GPU_MODE, **COMMON}, supports_check_mode=True, **ONE_GPU_OR_ALL)
    change(
        module,
        ["set-mode", *flags(module.params, "vfs", "drain"), *gpu_words(module), module.params["mode"]],
        name="gpu",
    )


if __name__ == "__main__":
    main()
