#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A person who signs in to a controller: `vgpuctl controller ensure-person`, `set-password` and `delete-person`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: person
short_description: Ensure a person who signs in to a controller
version_added: 0.3.0
description:
  - Makes a person, or changes one. What a person may do, M(vgpuctl.vgpuctl.entitlement) says.
  - People of a directory need no task; signing in makes them, and replaces their groups.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes.fleet
options:
  name:
    type: str
    required: true
    description: The name with which the person signs in.
  groups:
    type: list
    elements: str
    description:
      - All groups of the person.
      - Without it they stay.
  disabled:
    type: bool
    description:
      - Whether the person cannot sign in. Desktops stay the person's.
      - Without it that stays.
  realm:
    type: str
    choices: [local, oidc, ldap]
    description:
      - Who checks the password.
      - A new person is V(local) without it.
  password_file:
    type: path
    description: A file on the machine of the task, whose first line is the password, of at least 12 characters.
  update_password:
    type: str
    default: on_create
    choices: [on_create, always]
    description:
      - V(on_create) sets the password of O(password_file) only if the person has none yet.
      - V(always) sets it each time, which ends the person's sessions, and is always a change.
  state:
    type: str
    default: present
    choices: [present, absent]
    description: V(absent) deletes a person who has no desktop, with all that the person may do.
seealso:
  - module: vgpuctl.vgpuctl.entitlement
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Let Ada sign in
  vgpuctl.vgpuctl.person:
    name: ada
    groups: [staff]
    password_file: /root/ada.password

- name: Keep somebody out who left
  vgpuctl.vgpuctl.person:
    name: eve
    disabled: true
"""

RETURN = r"""
person:
  description: The person, as in C(vgpuctl controller show-person --json). Empty if there was none.
  returned: success
  type: dict
  sample: {name: ada, realm: local, groups: [staff], disabled: false, has_password: true}
steps:
  description: The calls that changed something, or in check mode would.
  returned: success
  type: list
  elements: str
  sample: [ensure-person ada, set-password ada]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.fleet import CONTROLLER, Fleet
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import flags

KEYS = ("realm", "groups", "disabled", "has_password")


def main() -> None:
    """Hand the options over."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "groups": {"type": "list", "elements": "str"},
            "disabled": {"type": "bool"},
            "realm": {"type": "str", "choices": ["local", "oidc", "ldap"]},
            "password_file": {"type": "path", "no_log": False},  # the path is no secret
            "update_password": {
                "type": "str",
                "default": "on_create",
                "choices": ["on_create", "always"],
                "no_log": False,
            },
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            **CONTROLLER,
        },
        supports_check_mode=True,
    )
    fleet, params = Fleet(module), module.params
    name, groups = params["name"], params["groups"]
    before = fleet.read("show-person", "--", name, absent={})
    if params["state"] == "absent":
        fleet.change("delete-person", "--yes", "--", name, absent={})
        fleet.end("person", before, {}, KEYS)
    more = flags(params, "realm")
    more += ["--no-groups"] if groups == [] else [f"--group={group}" for group in groups or ()]
    if params["disabled"] is not None:
        more.append("--disabled" if params["disabled"] else "--enabled")
    after = fleet.change("ensure-person", *more, "--", name)
    when = params["update_password"]
    if params["password_file"] is not None and (when == "always" or not after["has_password"]):
        fleet.note("set-password")
        if not module.check_mode:
            after = fleet.read("set-password", "--password-file", params["password_file"], "--", name)
        after = {**after, "has_password": True}
    fleet.end("person", before, after, KEYS)


if __name__ == "__main__":
    main()
