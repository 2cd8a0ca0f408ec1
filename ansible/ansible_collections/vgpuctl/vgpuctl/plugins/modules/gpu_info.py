#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The GPUs of a host: `vgpuctl list-gpus`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: List the GPUs of a host, and who uses them
version_added: 0.1.0
description:
  - Model, backend, mode, driver, memory, virtual functions and vGPUs of each GPU. Unknown values are V(null).
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes.info
options:
  gpu:
    type: raw
    description:
      - Only this GPU, by its PCI address, in quotes; with the share of every vGPU. Empty if the GPU does not exist.
  all:
    type: bool
    default: false
    description:
      - Also every SR-IOV function, and every device bound to vfio-pci or to no driver.
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: List the host's GPUs
  vgpuctl.vgpuctl.gpu_info:
  register: found

- name: Show unused GPUs
  ansible.builtin.debug:
    msg: "{{ found.gpus | rejectattr('vgpus') | map(attribute='address') }}"
"""

RETURN = r"""
gpus:
  description: The GPUs, as in C(vgpuctl list-gpus --json).
  returned: success
  type: list
  elements: dict
  sample: [{address: '0000:3b:00.0', model: NVIDIA A100-PCIE-40GB, backend: vendor-vf, mode: vgpu}]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import PROGRAM, ask, flags, text_of


def main() -> None:
    """Ask for one GPU or for all."""
    spec = {"gpu": {"type": "raw"}, "all": {"type": "bool", "default": False}, **PROGRAM}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    gpu = text_of(module, "gpu", module.params["gpu"])
    if gpu is None:
        module.exit_json(changed=False, gpus=ask(module, ["list-gpus", *flags(module.params, "all")])["data"])
    found = ask(module, ["show-gpu", "--", str(gpu)], absent={})["data"]
    module.exit_json(changed=False, gpus=[found] if found else [])


if __name__ == "__main__":
    main()
