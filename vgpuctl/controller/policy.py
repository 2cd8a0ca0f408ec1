# SPDX-License-Identifier: Apache-2.0
"""Who may do what: one function decides for every call of the API and every page.

    decide(caller, Access(Role.OPERATOR, Right.OPERATE, own=True), FleetTarget(pool="office", owner="ada"))

A call's `Access` says who may make it; its `FleetTarget` is what it is about. A role holds in the whole fleet, a right
on a pool; a desktop's user may some things with it whatever rights he has, until it is taken from him.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from vgpuctl.controller.model import CallerKind, FleetCaller, PoolSpec, Right, Role
from vgpuctl.errors import NotAllowed, NotFound
from vgpuctl.value import Value, field_names

_ROLES: Mapping[Role, int] = {Role.VIEWER: 1, Role.OPERATOR: 2, Role.ADMIN: 3}
_RIGHTS: Mapping[Right, int] = {Right.USE: 1, Right.OPERATE: 2, Right.MANAGE: 3}


MANAGED_FIELDS = frozenset({
    "image", "spare", "schedules", "time_zone", "per_user", "on_logoff", "lease_days", "ready_when", "port",
    "boot_minutes", "max_unavailable",
})  # fmt: skip
"""What the manager of a pool may change of its spec: nothing that takes more of the hosts, or another part of them."""


class Access(Value):
    """Who may make a call. `role`: the least in the fleet; None: none gives it.

    `right`: the least on the pool that it is about. `any_pool`: for a call about no pool that right on any pool is
    enough, since its answer has only those pools. `own`: the user of the desktop that it is about, too. `myself`: each
    person, about himself.
    """

    role: Role | None
    right: Right | None = None
    own: bool = False
    myself: bool = False
    any_pool: bool = False

    @property
    def words(self) -> str:
        """Who may, in words."""
        kinds = [
            f"the role {self.role}" if self.role is not None else "",
            f"the right {self.right} on the pool" if self.right is not None else "",
            "to be the desktop's user" if self.own else "",
            "to be signed in" if self.myself else "",
        ]
        return " or ".join(filter(None, kinds))


class FleetTarget(Value):
    """What a call is about: a pool by its name, a desktop of it, or neither. `owner`: the desktop's user."""

    pool: str | None = None
    owner: str | None = None
    is_desktop: bool = False


class FleetDecision(Enum):
    """`HIDE`: the caller may not even know that it exists: he is answered as if it did not."""

    ALLOW = "allow"
    DENY = "deny"
    HIDE = "hide"


def decide(caller: FleetCaller, access: Access, target: FleetTarget) -> FleetDecision:
    """Return whether a caller may make a call that is about a target."""
    if has_role(caller, access.role):
        return FleetDecision.ALLOW
    if access.myself and caller.kind is CallerKind.PERSON:
        return FleetDecision.ALLOW
    is_own = caller.kind is CallerKind.PERSON and target.owner is not None and target.owner == caller.name
    if access.own and is_own:
        return FleetDecision.ALLOW
    is_about = access.any_pool or target.pool is not None
    if access.right is not None and is_about and has_right(caller, access.right, target.pool):
        return FleetDecision.ALLOW
    least = Right.OPERATE if target.is_desktop else Right.USE  # who uses a pool sees no desktops of others
    is_seen = caller.role is not None or is_own or target.pool is None or has_right(caller, least, target.pool)
    return FleetDecision.DENY if is_seen else FleetDecision.HIDE


def has_role(caller: FleetCaller, least: Role | None) -> bool:
    """Return whether a caller has a role in the fleet, or one that includes it; None: nobody has."""
    return least is not None and caller.role is not None and _ROLES[caller.role] >= _ROLES[least]


def sees_pool(caller: FleetCaller, pool: str, right: Right = Right.OPERATE) -> bool:
    """Return whether a pool, and what is in it, is in the answers that a caller gets."""
    return caller.role is not None or has_right(caller, right, pool)


def operates_pool(caller: FleetCaller, pool: str) -> bool:
    """Return whether a caller operates a pool: by a role in the fleet, or by a right on it."""
    return has_role(caller, Role.OPERATOR) or has_right(caller, Right.OPERATE, pool)


def greatest(rights: Mapping[str, Right], pool: str, right: Right) -> Right:
    """Return the greater one of a right on a pool and the one that somebody has there already."""
    return max(rights.get(pool, right), right, key=_RIGHTS.__getitem__)


def greatest_role(one: Role | None, other: Role) -> Role:
    """Return the greater one of two roles."""
    return other if one is None else max(one, other, key=_ROLES.__getitem__)


def rights_text(caller: FleetCaller) -> str:
    """Return what a caller may do, in words."""
    words = [] if caller.role is None else [f"the role {caller.role}"]
    words += [f"{right} on {pool}" for pool, right in sorted(caller.rights.items())[:5]]
    return ", ".join(words) or "no rights"


def refuse_of_manager(before: PoolSpec, after: PoolSpec) -> None:
    """Refuse a change of a pool's spec that is an operator's.

    Raises:
        NotAllowed: it is, of some fields.
    """
    changed = [name for name in field_names(before) if getattr(before, name) != getattr(after, name)]
    others = [name for name in changed if name not in MANAGED_FIELDS]
    if others:
        raise NotAllowed(
            f"{', '.join(others)}: an operator of the fleet decides; a pool's manager changes "
            f"{', '.join(sorted(MANAGED_FIELDS))}",
            rule="manage",
        )


def no_pool(name: str) -> NotFound:
    """Return the error for a pool that does not exist."""
    return NotFound(f"there is no pool {name}", hint="vgpuctl controller list-pools", pool=name)


def no_desktop(name: str) -> NotFound:
    """Return the error for a desktop that does not exist."""
    return NotFound(f"there is no desktop {name}", hint="vgpuctl controller list-desktops", desktop=name)


def only_admins(pool: str | None) -> NotAllowed:
    """Return the error for who would decide what only admins decide: who manages a pool, or has a role."""
    what = "who has a role in the fleet" if pool is None else f"who manages the pool {pool}"
    return NotAllowed(f"an admin decides {what}", hint="use and operate are a manager's to give", rule="manage")


def not_allowed(what: str, access: Access, caller: FleetCaller) -> NotAllowed:
    """Return the error for a caller who may not do what `access` is about."""
    return NotAllowed(
        f"{what} needs {access.words}, and {caller.name} has {rights_text(caller)}",
        hint="an admin of the fleet decides who may: vgpuctl controller entitle, or add-token",
        rule="role",
    )


def has_right(caller: FleetCaller, least: Right, pool: str | None) -> bool:
    """Return whether a caller has a right on a pool, or one that includes it; None: on any pool."""
    rights = caller.rights.values() if pool is None else [caller.rights[pool]] if pool in caller.rights else []
    return any(_RIGHTS[right] >= _RIGHTS[least] for right in rights)
