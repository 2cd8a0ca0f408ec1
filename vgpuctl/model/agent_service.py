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
IDENTITY_PATH = f"{RUN_DIRECTORY}/agent"
"""The running agent's version and pid, one line: doctor and install-host read it without a connection. It stays when
the agent ends. Its pid says whether it still holds: children of an agent that ended may remain in its cgroup.
"""
STATE_DIRECTORY = "/var/lib/vgpuctl-agent"
METRICS_PORT = 19935
"""Above the range 9100 to 9999, whose ports Prometheus' list gives to exporters one by one."""
STOP_SECONDS = 600
"""How long systemd waits after SIGTERM: the agent ends or undoes its running operations within that."""


def identity_text(version: str, pid: int) -> str:
    """Return what the file at `IDENTITY_PATH` holds."""
    return f"{version} {pid}\n"


def parse_identity(text: str | None) -> tuple[str, str] | None:
    """Return the version and the pid from the text of that file; None if there is no such text."""
    words = (text or "").split()
    return (words[0], words[1]) if len(words) == 2 else None
