# SPDX-License-Identifier: Apache-2.0
"""The names of the controller's service on a machine: unit, user, paths, variables."""

from __future__ import annotations

SERVICE_UNIT = "vgpuctl-controller.service"
SOCKET_PATH = "/run/vgpuctl-controller/controller.sock"
"""Only the user who runs the controller, and root, may connect."""
STATE_DIRECTORY = "/var/lib/vgpuctl-controller"
ACCOUNT = "vgpuctl-controller"
"""The system user who runs the service; the state directory is its home, with its SSH key."""
OPTIONS_FILE = "/etc/default/vgpuctl-controller"
"""What the unit runs the controller with: OPTIONS="--listen ..."."""
DATABASE_FILE = "fleet.db"
URL_VARIABLE, TOKEN_VARIABLE = "VGPUCTL_CONTROLLER", "VGPUCTL_TOKEN_FILE"
