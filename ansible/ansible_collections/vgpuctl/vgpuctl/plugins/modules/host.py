#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host as its host.yaml says: `vgpuctl apply`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host
short_description: Make a host as its host.yaml says
version_added: 0.1.0
description:
  - Sets up every GPU that C(/etc/vgpuctl/host.yaml) names, and makes the vGPUs without a VM that it names.
  - What stands against it on any GPU is told before anything is changed.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes
options:
  spec:
    type: dict
    description:
      - The whole of host.yaml, as in C(docs/reference/host-file.md). It becomes the host's file when the host is so.
      - GPUs are named by their addresses, in quotes, or by their models.
  src:
    type: path
    description:
      - A file on the managed host in the place of O(spec).
  gpus:
    type: dict
    description:
      - Parts to change in the host's own file, which keeps its comments. GPU, as host.yaml names it, to keys and
        values; V(null) takes a key out.
  prune:
    type: bool
    default: false
    description:
      - Whether O(spec) or O(src) may take entries of the host's file away, or keys of them. Without it the task fails,
        changes nothing, and lists what would go; in check mode RV(host) lists that under C(removed).
      - The last ten versions of the file stay beside it; C(vgpuctl apply --undo) goes back to one.
  drain:
    type: bool
    default: false
    description:
      - Shut running VMs down first, at most O(wait) seconds, and start them again.
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: The whole host
  vgpuctl.vgpuctl.host:
    spec:
      version: 1
      gpus:
        A16: {mode: vgpu}
        '0000:3b:00.0': {mode: vgpu, scheduler: {policy: fixed_share, time_slice_ms: 2}}

- name: Nothing new on this GPU
  vgpuctl.vgpuctl.host:
    gpus:
      '0000:3b:00.0': {cordoned: true}

- name: What the host's own file says
  vgpuctl.vgpuctl.host:
"""

RETURN = r"""
host:
  description: What differed, GPU by GPU, as C(vgpuctl diff --json) tells it.
  returned: success
  type: dict
  sample:
    gpus: [{address: '0000:17:00.0', differences: [{key: mode, is: unmanaged, wanted: vgpu}]}]
    settings: []
    removed: []
steps:
  description: What was done, or in check mode what would be.
  returned: success
  type: list
  elements: str
  sample: ['turn the 16 VFs of 0000:17:00.0 on (sriov-manage)']
notes:
  description: What there is to know about it.
  returned: success
  type: list
  elements: str
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import (
    COMMON,
    change,
    flags,
    mapping_of,
    text_of,
)


def main() -> None:
    """Hand the file over as JSON, which is YAML, or the parts as --set."""
    module = AnsibleModule(
        argument_spec={
            "spec": {"type": "dict"},
            "src": {"type": "path"},
            "gpus": {"type": "dict"},
            "prune": {"type": "bool", "default": False},
            "drain": {"type": "bool", "default": False},
            **COMMON,
        },
        mutually_exclusive=[("spec", "src")],
        supports_check_mode=True,
    )
    spec, src, parts = module.params["spec"], module.params["src"], module.params["gpus"] or {}
    for gpu, keys in parts.items():
        if not isinstance(keys, dict):
            module.fail_json(msg=f"gpus: {gpu}: keys and values are due here: {{mode: vgpu}}", code="invalid-input")
    named = {text_of(module, "gpus", gpu): keys for gpu, keys in parts.items()}
    for gpu in mapping_of(module, "spec.gpus", (spec or {}).get("gpus") or {}):
        text_of(module, "spec.gpus", gpu)
    file = ["--file", src or "-"] if spec is not None or src is not None else []
    sets = [f"gpus[{gpu}].{key}={json.dumps(value)}" for gpu, keys in named.items() for key, value in keys.items()]
    words = ["apply", *file, *flags({"set": sets, "drain": module.params["drain"]}, "set", "drain")]
    consent = None if module.params["prune"] else "prune: true lets these go"
    change(module, words, json.dumps(spec) if spec is not None else None, name="host", consent=consent)


if __name__ == "__main__":
    main()
