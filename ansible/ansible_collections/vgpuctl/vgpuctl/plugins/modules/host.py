#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host as its host.yaml says: `vgpuctl apply`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host
short_description: Change a host to match its host.yaml
version_added: 0.1.0
description:
  - Sets up every GPU of C(/etc/vgpuctl/host.yaml), and creates its vGPUs without a VM.
  - All blockers are reported before anything changes.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes
options:
  spec:
    type: dict
    description:
      - A complete host.yaml (see C(docs/reference/host-file.md)). It replaces the host's file once the host matches it.
      - GPUs are named by their addresses, in quotes, or by their models.
  src:
    type: path
    description:
      - A file on the managed host instead of O(spec).
  gpus:
    type: dict
    description:
      - Changes of the host's own file, which keeps its comments. Each GPU, named as in host.yaml, has keys and
        values; V(null) removes a key.
  agent:
    type: dict
    description:
      - Changes of the section C(agent) of the host's own file, which keeps its comments, such as C(accounts). Mappings
        are merged; a list replaces the list; V(null) removes a key.
  prune:
    type: bool
    default: false
    description:
      - Whether O(spec) or O(src) may remove entries, or keys of entries, from the host's file. Otherwise the task
        fails, changes nothing, and lists what would be removed; in check mode RV(host) lists it under C(removed).
      - The last ten versions of the file are saved; C(vgpuctl apply --undo) goes back to one.
  drain:
    type: bool
    default: false
    description:
      - Shut running VMs down first, at most O(wait) seconds, and start them again.
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Set up the whole host
  vgpuctl.vgpuctl.host:
    spec:
      version: 1
      gpus:
        A16: {mode: vgpu}
        '0000:3b:00.0': {mode: vgpu, scheduler: {policy: fixed_share, time_slice_ms: 2}}

- name: Cordon a GPU
  vgpuctl.vgpuctl.host:
    gpus:
      '0000:3b:00.0': {cordoned: true}

- name: Let an account change the VMs of others
  vgpuctl.vgpuctl.host:
    agent:
      accounts: {ada: operator}

- name: Apply the host's own file
  vgpuctl.vgpuctl.host:
"""

RETURN = r"""
host:
  description: The differences of each GPU, as in C(vgpuctl diff --json).
  returned: success
  type: dict
  sample:
    gpus: [{address: '0000:17:00.0', differences: [{key: mode, is: unmanaged, wanted: vgpu}]}]
    settings: []
    removed: []
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

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import (
    COMMON,
    change,
    flags,
    mapping_of,
    text_of,
)


def agent_sets(value: object, path: str = "agent") -> list[str]:
    """Return the --set of each value in a section."""
    if not isinstance(value, dict) or not value:
        return [f"{path}={json.dumps(value)}"]
    return [text for key, inner in value.items() for text in agent_sets(inner, f"{path}[{key}]")]


def main() -> None:
    """Hand the file over as JSON, which is YAML, or the parts as --set."""
    module = AnsibleModule(
        argument_spec={
            "spec": {"type": "dict"},
            "src": {"type": "path"},
            "gpus": {"type": "dict"},
            "agent": {"type": "dict"},
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
            module.fail_json(msg=f"gpus: {gpu}: expected keys and values, like {{mode: vgpu}}", code="invalid-input")
    named = {text_of(module, "gpus", gpu): keys for gpu, keys in parts.items()}
    for gpu in mapping_of(module, "spec.gpus", (spec or {}).get("gpus") or {}):
        text_of(module, "spec.gpus", gpu)
    file = ["--file", src or "-"] if spec is not None or src is not None else []
    sets = [f"gpus[{gpu}].{key}={json.dumps(value)}" for gpu, keys in named.items() for key, value in keys.items()]
    sets += agent_sets(module.params["agent"]) if module.params["agent"] else []
    words = ["apply", *file, *flags({"set": sets, "drain": module.params["drain"]}, "set", "drain")]
    consent = None if module.params["prune"] else "prune: true lets these go"
    data = json.dumps(spec) if spec is not None else None
    change(module, words, data, name="host", consent=consent, may_stop_vms=module.params["drain"])


if __name__ == "__main__":
    main()
