#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An image of pools of desktops: `vgpuctl controller ensure-image` and `delete-image`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image
short_description: Ensure an image of the pools of desktops
version_added: 0.3.0
description:
  - Says which file pools make desktops of. One of O(file), O(url) and O(path) says where it is.
  - Hosts get copies of the first two.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes.fleet
options:
  name:
    type: str
    required: true
    description: The image's name, as pool specs have it.
  file:
    type: path
    description: A qcow2 or raw image on the controller's machine, which sends it to hosts.
  url:
    type: str
    description: Where each host fetches it, by https and with O(sha256).
  path:
    type: path
    description: Where each host has it already, as on storage which hosts share.
  version:
    type: str
    description:
      - For people.
      - Without it V(1).
  os:
    type: str
    description:
      - V(linux), V(windows11) or another word for people.
      - Without it V(linux).
  sha256:
    type: str
    description: The file's checksum. Needed with O(url), computed for O(file).
  retired:
    type: bool
    description: Whether no pool may begin to use it.
  state:
    type: str
    default: present
    choices: [present, absent]
    description: V(absent) forgets an image that no pool and no desktop uses; hosts delete their copies.
seealso:
  - module: vgpuctl.vgpuctl.pool
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Name the image of the office desktops
  vgpuctl.vgpuctl.image:
    name: office
    path: /srv/images/office-11.qcow2
    version: '11'
"""

RETURN = r"""
image:
  description: The image, as in C(vgpuctl controller list-images --json). Empty if there was none.
  returned: success
  type: dict
  sample: {name: office, path: /srv/images/office-11.qcow2, version: '11', os: linux, pools: [office]}
steps:
  description: The calls that changed something, or in check mode would.
  returned: success
  type: list
  elements: str
  sample: [ensure-image office]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.fleet import CONTROLLER, Fleet
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import flags

KEYS = ("file", "url", "path", "version", "os", "sha256", "retired")


def main() -> None:
    """Hand the options over."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "file": {"type": "path"},
            "url": {"type": "str"},
            "path": {"type": "path"},
            "version": {"type": "str"},
            "os": {"type": "str"},
            "sha256": {"type": "str"},
            "retired": {"type": "bool"},
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            **CONTROLLER,
        },
        required_if=[("state", "present", ("file", "url", "path"), True)],
        mutually_exclusive=[("file", "url", "path")],
        supports_check_mode=True,
    )
    fleet, name = Fleet(module), module.params["name"]
    before = next((one for one in fleet.read("list-images") if one["name"] == name), {})
    if module.params["state"] == "absent":
        fleet.change("delete-image", "--", name, absent={})
        fleet.end("image", before, {}, KEYS)
    more = flags(module.params, "file", "url", "path", "version", "os", "sha256", "retired")
    after = fleet.change("ensure-image", *more, "--", name)
    fleet.end("image", before, after, KEYS)


if __name__ == "__main__":
    main()
