# SPDX-License-Identifier: Apache-2.0
"""Who a user of the agent's socket is: by the groups of the host, and the accounts that host.yaml lists."""

from __future__ import annotations

import grp
import os
import pwd
from typing import Protocol

from vgpuctl.config.agent_spec import AgentSpec
from vgpuctl.model.agent_service import OPERATORS_GROUP, VIEWERS_GROUP
from vgpuctl.model.caller import Caller, Rights


class Users(Protocol):
    """The users and groups of a host."""

    def name_of(self, uid: int) -> str | None:
        """Return the name of a user; None if there is none."""

    def groups_of(self, name: str) -> frozenset[str]:
        """Return the names of all groups that a user is in, the primary one too."""


class SystemUsers:
    """The users that the name service knows (nsswitch.conf); it is asked each time."""

    def name_of(self, uid: int) -> str | None:
        """Return the name of a user; None if there is none."""
        try:
            return pwd.getpwuid(uid).pw_name
        except (KeyError, OverflowError):
            return None

    def groups_of(self, name: str) -> frozenset[str]:
        """Return which of the agent's groups a user is in; a group that does not exist has nobody."""
        try:
            ids = set(os.getgrouplist(name, pwd.getpwnam(name).pw_gid))
        except (KeyError, OSError):
            return frozenset()
        return frozenset(group for group in (OPERATORS_GROUP, VIEWERS_GROUP) if _group_id(group) in ids)


def _group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return -1


def caller_of(uid: int, policy: AgentSpec, users: Users) -> Caller | None:
    """Return who a user id is and what he may do; None: nothing."""
    name = users.name_of(uid)
    if uid == 0:
        return Caller(0, name or "root", Rights.ROOT)
    if name is None:
        return None
    groups = users.groups_of(name)
    if OPERATORS_GROUP in groups:
        rights = Rights(policy.accounts.get(name, Rights.MEMBER))
        limits, allow = policy.limits, policy.allow
        own, total = limits.of_account(name), limits.all_accounts
        lists = {key: getattr(allow, key) for key in ("licenses", "clusters", "domains")}
        return Caller(uid, name, rights, own, total, **lists)
    return Caller(uid, name, Rights.VIEWER) if VIEWERS_GROUP in groups else None
