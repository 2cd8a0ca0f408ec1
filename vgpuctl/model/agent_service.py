# SPDX-License-Identifier: Apache-2.0
"""The names of the agent's service on a host: units, groups, paths."""

from __future__ import annotations

SERVICE_UNIT = "vgpuctl-agent.service"
SOCKET_UNIT = "vgpuctl-agent.socket"
OPERATORS_GROUP = "vgpuctl"
"""Its members make, change and delete VMs and vGPUs through the agent."""
VIEWERS_GROUP = "vgpuctl-view"
"""Its members read."""
GROUPS = (OPERATORS_GROUP, VIEWERS_GROUP)
RUN_DIRECTORY = "/run/vgpuctl-agent"
"""Everybody may look into it: the socket's own mode says who may connect. It is not /run/vgpuctl, which has the claims
and is root's, and which no unit may name as its RuntimeDirectory=: systemd deletes that when the service stops."""
SOCKET_PATH = f"{RUN_DIRECTORY}/agent.sock"
SOCKET_MODE = 0o660
VERSION_PATH = f"{RUN_DIRECTORY}/version"
"""The running agent's version, one line: doctor and install-host read it without a connection."""
STATE_DIRECTORY = "/var/lib/vgpuctl-agent"
STOP_SECONDS = 600
"""How long systemd waits after SIGTERM: the agent ends or undoes its running operations within that."""
