#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A pool of desktops on many hosts: `vgpuctl controller ensure-pool`, `pause-pool`, `resume-pool`, `delete-pool`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pool
short_description: Ensure a pool of desktops on many hosts
version_added: 0.3.0
description:
  - The controller makes, refreshes and deletes the pool's desktops on its hosts; the task does not wait for them.
  - For desktops on one host, without a controller, use M(vgpuctl.vgpuctl.vm).
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes.fleet
options:
  name:
    type: str
    required: true
    description: The pool's name.
  spec:
    type: dict
    description:
      - The pool spec (see C(docs/reference/pool-spec.md)). It is the whole spec; without a key its default counts.
      - Required for V(present), unless O(src) is given.
  src:
    type: path
    description: A file with the pool spec on the managed host instead of O(spec).
  state:
    type: str
    default: present
    choices: [present, active, paused, absent]
    description:
      - V(present) leaves a pool paused or active as it is.
      - V(paused) makes, starts and refreshes nothing for it, and its users keep their desktops. V(active) ends that,
        also after errors paused it.
      - V(absent) deletes the pool with all its desktops and their disks, also those that users have. It goes with the
        last desktop.
  reason:
    type: str
    description: Why it is V(paused); who asks for a desktop sees it.
seealso:
  - module: vgpuctl.vgpuctl.image
  - module: vgpuctl.vgpuctl.fleet_info
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Forty desktops, five always ready
  vgpuctl.vgpuctl.pool:
    name: office
    spec:
      kind: floating
      image: office
      profile: A100-4C
      names: office-{:03}
      maximum: 40
      spare: 5
      vm: {memory: 8GiB, vcpus: 4, networks: [default]}

- name: Pause it while its storage is replaced
  vgpuctl.vgpuctl.pool:
    name: office
    state: paused
    reason: new storage

- name: Delete it with its desktops, by a controller on another machine
  vgpuctl.vgpuctl.pool:
    name: office
    state: absent
    controller: https://fleet.example.org:8443
    token_file: /root/fleet.token
"""

RETURN = r"""
pool:
  description: The pool, as in C(vgpuctl controller show-pool --json). Empty if there is none.
  returned: success
  type: dict
  sample: {name: office, state: active, image: office, maximum: 40, ready: 5, assigned: 12}
steps:
  description: The calls that changed something, or in check mode would.
  returned: success
  type: list
  elements: str
  sample: [ensure-pool office]
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.fleet import CONTROLLER, Fleet
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import flags

STATE_CALLS = {"active": "resume-pool", "paused": "pause-pool"}


def main() -> None:
    """Hand the spec over, then the state; the controller finds out what differs."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "spec": {"type": "dict"},
            "src": {"type": "path"},
            "state": {"type": "str", "default": "present", "choices": ["present", "active", "paused", "absent"]},
            "reason": {"type": "str"},
            **CONTROLLER,
        },
        mutually_exclusive=[("spec", "src")],
        required_if=[("state", "present", ("spec", "src"), True)],
        supports_check_mode=True,
    )
    fleet, state, name = Fleet(module), module.params["state"], ["--", module.params["name"]]
    spec, src = module.params["spec"], module.params["src"]
    before = fleet.read("show-pool", *name, absent={})
    if state == "absent":
        gone = fleet.change("delete-pool", *name, absent={})
        fleet.end("pool", before, gone, ("state", "spec"))
    after = before
    if spec is not None or src is not None:
        data = json.dumps(spec) if spec is not None else None
        after = fleet.change("ensure-pool", "--file", src or "-", *name, data=data)
    if state in STATE_CALLS and (before or not module.check_mode or not after):
        reason = flags(module.params, "reason") if state == "paused" else []
        after = {**fleet.change(STATE_CALLS[state], *reason, *name), "spec": after.get("spec")}
    elif state == "paused":  # the pool that the call would be about is not made
        fleet.note(STATE_CALLS[state])
        after = {**after, "state": state}
    fleet.end("pool", before, after, ("state", "spec"))


if __name__ == "__main__":
    main()
