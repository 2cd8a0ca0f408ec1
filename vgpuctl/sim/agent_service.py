# SPDX-License-Identifier: Apache-2.0
"""The host agent of a simulated host, which has no systemd: an agent that is enabled runs, with its socket.

What systemd does: a unit that a target wants is started with it; ListenStream= makes the socket, with SocketMode= and
SocketGroup= (systemd.socket(5)); a running service has a cgroup with its processes (cgroups(7)).
"""

from __future__ import annotations

import errno
from pathlib import Path

from vgpuctl.model.port_values import FilePermissions
from vgpuctl.sim.tree import FileNode, kernel_error, text_file
from vgpuctl.version import __version__

_SOCKET = "/run/vgpuctl-agent/agent.sock"
_SOCKET_LINK = "etc/systemd/system/sockets.target.wants/vgpuctl-agent.socket"
_SERVICE_LINK = "etc/systemd/system/multi-user.target.wants/vgpuctl-agent.service"
_SERVICE_FILES = {
    "/sys/fs/cgroup/system.slice/vgpuctl-agent.service/cgroup.procs": "1309",
    "/run/vgpuctl-agent/agent": f"{__version__} 1309",
}


def find_file(directory: Path, path: str) -> FileNode | None:
    """Return a file of the agent; None for a path that has nothing to do with it. `directory`: the host's real files.

    Raises:
        OSError: it is the agent's, and there is none (ENOENT).
    """
    is_there = {_SOCKET: _SOCKET_LINK, **dict.fromkeys(_SERVICE_FILES, _SERVICE_LINK)}.get(path)
    if is_there is None:
        return None
    if not (directory / is_there).is_symlink():
        raise kernel_error(errno.ENOENT, path)
    return FileNode() if path == _SOCKET else text_file(_SERVICE_FILES[path])


def find_permissions(directory: Path, path: str) -> FilePermissions | None:
    """Return mode and owner of the agent's socket, whose group is in the host's /etc/group; None for other paths.

    Raises:
        OSError: there is no socket (ENOENT).
    """
    if path != _SOCKET:
        return None
    find_file(directory, path)
    groups = directory / "etc/group"
    rows = [line.split(":") for line in (groups.read_text().splitlines() if groups.is_file() else [])]
    group_id = next((int(row[2]) for row in rows if row[0] == "vgpuctl"), None)
    if group_id is None:  # systemd makes no socket for a group that it does not find
        raise kernel_error(errno.ENOENT, path)
    return FilePermissions(0o660, 0, group_id)
