#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a GPU's time is divided: `vgpuctl set-scheduler`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: scheduler
short_description: Set how NVIDIA's driver divides a GPU's time among its vGPUs
version_added: 0.1.0
description:
  - V(best_effort) guarantees nothing. V(equal_share) gives each running vGPU the same share. V(fixed_share) gives each
    vGPU the same share, whether the others run or not.
  - The driver changes this only on a GPU without vGPUs; O(drain) removes the vGPUs temporarily and restores them.
  - The setting is written to C(/etc/vgpuctl/host.yaml) and restored after a boot.
  - Where NVML cannot set it, the setting is written and the task fails, with the line for a file in
    C(/etc/modprobe.d), until the driver was loaded with it.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes
  - vgpuctl.vgpuctl.options.scheduler
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Give each vGPU a fixed share
  vgpuctl.vgpuctl.scheduler:
    gpu: '0000:3b:00.0'
    policy: fixed_share
    time_slice: 2
    drain: true

- name: The same policy on every GPU of the host
  vgpuctl.vgpuctl.scheduler:
    all: true
    policy: equal_share
"""

RETURN = r"""
gpu:
  description: The GPU, as in C(vgpuctl show-gpu --json), with what is configured and what runs. With O(all) its
    C(targets), one for each GPU with its C(name), C(changed) and C(data).
  returned: success
  type: dict
  sample: {address: '0000:3b:00.0', scheduler: {configured: {policy: fixed_share, time_slice_ms: 2}}}
steps:
  description: The steps done, or in check mode the steps that would be done.
  returned: success
  type: list
  elements: str
  sample: ['set the scheduler of 0000:3b:00.0 to fixed_share, time slice 2 ms (NVML)']
notes:
  description: Notes about the result.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.options import SCHEDULER
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import (
    COMMON,
    ONE_GPU_OR_ALL,
    change,
    flags,
    gpu_words,
)


def main() -> None:
    """Hand the options over."""
    module = AnsibleModule(argument_spec={**SCHEDULER, **COMMON}, supports_check_mode=True, **ONE_GPU_OR_ALL)
    options = flags(module.params, *(option for option in SCHEDULER if option not in ("gpu", "all")))
    change(module, ["set-scheduler", *options, *gpu_words(module)], name="gpu")


if __name__ == "__main__":
    main()
