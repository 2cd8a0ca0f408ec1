#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wrong with a host: `vgpuctl doctor`."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor_info
short_description: Check a host and show how to fix what is wrong
version_added: 0.1.0
description:
  - Checks firmware, kernel, drivers, libvirt, GPUs and leftovers. It fixes nothing.
  - The module succeeds even if a check fails; see RV(verdict).
extends_documentation_fragment:
  - vgpuctl.vgpuctl.attributes.info
options:
  checks:
    type: list
    elements: str
    default: []
    description:
      - Run only these checks, by id. Without it all checks run.
author:
  - the vgpuctl project (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Run all checks
  vgpuctl.vgpuctl.doctor_info:
  register: doctor

- name: Stop where something is wrong
  ansible.builtin.assert:
    that: doctor.verdict != 'fail'
    fail_msg: "{{ doctor.wrong | map(attribute='title') | join(', ') }}"
"""

RETURN = r"""
verdict:
  description: The worst of all checks, V(ok), V(warn), V(unknown) or V(fail).
  returned: success
  type: str
  sample: ok
checks:
  description: Every check with its evidence and fix, as in C(vgpuctl doctor --json).
  returned: success
  type: list
  elements: dict
  sample: [{id: iommu, verdict: ok, evidence: ['/sys/kernel/iommu_groups: 18 groups'], fix: null}]
wrong:
  description: The failed checks.
  returned: success
  type: list
  elements: dict
  sample: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vgpuctl.vgpuctl.plugins.module_utils.vgpuctl import PROGRAM, ask


def main() -> None:
    """Ask for the checks."""
    spec = {"checks": {"type": "list", "elements": "str", "default": []}, **PROGRAM}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    data = ask(module, ["doctor", "--", *module.params["checks"]])["data"]
    wrong = [check for check in data["checks"] if check["verdict"] == "fail"]
    module.exit_json(changed=False, verdict=data["verdict"], checks=data["checks"], wrong=wrong)


if __name__ == "__main__":
    main()
