# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What every module of the collection can do, and the options that all of them have."""

from __future__ import annotations


class ModuleDocFragment:
    """Fragments: the modules that change something, and with `.info` those that only look; those of a controller."""

    DOCUMENTATION = r"""
requirements:
  - vgpuctl 0.1 or newer on the managed host
options:
  executable:
    type: path
    description:
      - Where vgpuctl is. Without it, the one in V(/opt/vgpuctl/bin), else the first of E(PATH).
  wait:
    type: float
    description:
      - How many seconds to wait for another vgpuctl, or for a busy device. Without it vgpuctl waits 60 seconds.
attributes:
  check_mode:
    support: full
    description: Shows what would be done, with C(vgpuctl --dry-run), and changes nothing.
  diff_mode:
    support: full
    description: Shows the states before and after, and the steps of the plan.
  idempotent:
    support: full
    description: A second run changes nothing.
"""

    INFO = r"""
requirements:
  - vgpuctl 0.1 or newer on the managed host
options:
  executable:
    type: path
    description:
      - Where vgpuctl is. Without it, the one in V(/opt/vgpuctl/bin), else the first of E(PATH).
attributes:
  check_mode:
    support: full
    description: It only looks.
  diff_mode:
    support: N/A
    description: It changes nothing.
  idempotent:
    support: full
    description: It changes nothing.
"""

    FLEET = r"""
requirements:
  - vgpuctl 0.3 or newer on the managed host
options:
  controller:
    type: str
    description:
      - The controller, V(https://HOST[:PORT]), or the path of its socket on the managed host.
      - Without it, E(VGPUCTL_CONTROLLER) or the managed host's own one, whose socket only root and its user can use.
  token_file:
    type: path
    description:
      - A file with an API token on the managed host, for an address. Without it, E(VGPUCTL_TOKEN_FILE).
      - The secret itself is no option, so it is in no log and on no command line.
  executable:
    type: path
    description:
      - Where vgpuctl is. Without it, the one in V(/opt/vgpuctl/bin), else the first of E(PATH).
attributes:
  check_mode:
    support: full
    description: The controller checks what would change, with C(--dry-run), and changes nothing.
  diff_mode:
    support: full
    description: Shows what the controller wants before and after.
  idempotent:
    support: full
    description: A second run changes nothing.
"""

    FLEET_INFO = r"""
requirements:
  - vgpuctl 0.3 or newer on the managed host
options:
  controller:
    type: str
    description:
      - The controller, V(https://HOST[:PORT]), or the path of its socket on the managed host.
      - Without it, E(VGPUCTL_CONTROLLER) or the managed host's own one, whose socket only root and its user can use.
  token_file:
    type: path
    description:
      - A file with an API token on the managed host, for an address. Without it, E(VGPUCTL_TOKEN_FILE).
      - The secret itself is no option, so it is in no log and on no command line.
  executable:
    type: path
    description:
      - Where vgpuctl is. Without it, the one in V(/opt/vgpuctl/bin), else the first of E(PATH).
attributes:
  check_mode:
    support: full
    description: It only looks.
  diff_mode:
    support: N/A
    description: It changes nothing.
  idempotent:
    support: full
    description: It changes nothing.
"""
