# SPDX-License-Identifier: Apache-2.0
"""What the agent itself does in /run/vgpuctl-agent: who may connect, and who runs.

The server does, once it listens and before it says READY=1:

    run_directory.let_group_connect(socket_path, grp.getgrnam(agent_service.VIEWERS_GROUP).gr_gid)
    run_directory.publish_identity(Path(agent_service.IDENTITY_PATH))

The socket unit gives the socket to one group, vgpuctl. To connect to a Unix socket takes the right to write to it, so
members of vgpuctl-view, who may only read, would not get as far as the agent, which knows their rights. A POSIX ACL
lets a second group in; the mode stays 0660.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from vgpuctl.model import agent_service
from vgpuctl.version import __version__

_ACL = "system.posix_acl_access"
_ACL_VERSION = 2
_USER_OBJ, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x04, 0x08, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_READ_WRITE = 6


def let_group_connect(path: str, group_id: int) -> None:
    """Give a group the right to connect to a socket, beside those whom its mode (0660) lets in.

    Raises:
        OSError: the file is not there or not this user's, or its file system has no ACLs (EOPNOTSUPP).
    """
    entries = (
        (_USER_OBJ, _READ_WRITE, _NO_ID),
        (_GROUP_OBJ, _READ_WRITE, _NO_ID),
        (_GROUP, _READ_WRITE, group_id),
        (_MASK, _READ_WRITE, _NO_ID),
        (_OTHER, 0, _NO_ID),
    )
    # posix_acl_xattr.h: a version, then tag, permissions and id of each entry, little-endian, in the order of the tags
    value = struct.pack("<I", _ACL_VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(path, _ACL, value, follow_symlinks=False)


def publish_identity(path: Path) -> None:
    """Write this program's version and pid where doctor and install-host read it; no reader sees half of it.

    Raises:
        OSError: the directory is not there or cannot be written.
    """
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(agent_service.identity_text(__version__, os.getpid()), encoding="ascii")
    temporary.chmod(0o644)
    temporary.replace(path)
