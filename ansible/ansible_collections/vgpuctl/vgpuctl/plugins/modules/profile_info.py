#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What can be made on a host: `vgpuctl list-profiles`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: profile_info
short_description: List the vGPU profiles of a host, and how many more of each fit
version_added: 0.1.0
description:
  - C(free) is how many more fit on the whole host now; V(null) if that is not known until it is tried.
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes.info
options:
  gpu:
    type: raw
    description:
      - Only the profiles of this GPU, by its PCI address, in quotes.
  all:
    type: bool
    default: false
    description:
      - Also profiles that have no room now.
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: List the profiles
  vgpuctl.vgpuctl.profile_info:
  register: found

- name: Check that ten more desktops fit
  ansible.builtin.assert:
    that: (found.profiles | selectattr('profile', 'eq', 'A16-1Q') | first).free >= 10
"""

RETURN = r"""
profiles:
  description: The profiles, as in C(vgpuctl list-profiles --json).
  returned: success
  type: list
  elements: dict
  sample: [{profile: A100-4C, framebuffer_mib: 4096, max_per_gpu: 10, free: 7}]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import PROGRAM, ask, flags, text_of


def main() -> None:
    """Ask for them."""
    spec = {"gpu": {"type": "raw"}, "all": {"type": "bool", "default": False}, **PROGRAM}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    params = {**module.params, "gpu": text_of(module, "gpu", module.params["gpu"])}
    module.exit_json(changed=False, profiles=ask(module, ["list-profiles", *flags(params, "gpu", "all")])["data"])


if __name__ == "__main__":
    main()
