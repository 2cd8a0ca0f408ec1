# SPDX-License-Identifier: Apache-2.0
"""Results of a controller's calls about people: who signs in, who may what, what is one's own."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.value import Value


class ApiTokenResult(Value):
    """An API token: a role in the fleet, or a right on some pools.

    `secret`: only in the answer that made it; the database has its digest alone.
    """

    name: str
    role: str | None
    created: str
    expires: str | None
    secret: str | None = None
    right: str | None = None
    pools: tuple[str, ...] = ()


class PersonResult(Value):
    """Somebody who signs in, or has a desktop. `realm`: who checks the password: local, oidc or ldap; null: none yet.

    `groups`: as at the last log-in. `password`: a new one, only in the answer that made it. `shown`: the full name, as
    a directory says it.
    """

    name: str
    realm: str | None
    groups: tuple[str, ...]
    disabled: bool
    has_password: bool
    shown: str | None
    signed_in: str | None
    generation: int
    password: str | None = None


class EntitlementResult(Value):
    """Who may what. `who`: a person, `@GROUP` or everybody. `right`: use, operate or manage a pool; or a role.

    `people`: how many people it is for now; null where that is not counted.
    """

    who: str
    right: str
    pool: str | None
    people: int | None = None


class MyselfResult(Value):
    """Who asks, and what he may do: a role in the fleet, and rights by pool. `kind`: local, token or person."""

    name: str
    kind: str
    role: str | None
    rights: Mapping[str, str]


class MyPoolResult(Value):
    """A pool of which somebody may have a desktop. `reason`: why it gives none now."""

    name: str
    kind: str
    state: str
    reason: str | None
    desktops: int
    per_user: int


class MyDesktopResult(Value):
    """A desktop of who asks; nothing of its host is in it.

    `why`: what it waits for. `password`: of his account in it, only in the answer that made it. `kind`: of its pool.
    `logon`: local: he has an account in it, with one-time passwords; null: its guest lets in whom it knows.
    `opens`: rdp: by the RDP file of open-desktop; else the link that opens it; null: it has no address yet, or its pool
    does not say how.
    """

    name: str
    pool: str
    phase: str
    why: str | None
    power: str
    address: str | None
    assigned: str | None
    lease_until: str | None
    password: str | None = None
    kind: str | None = None
    logon: str | None = None
    opens: str | None = None


class DesktopPortsResult(Value):
    """The ports of a desktop to which users connect through the controller."""

    name: str
    ports: tuple[int, ...]


class OpenDesktopResult(Value):
    """How a desktop is opened: by a `link`, or by a `file`, the text of an RDP file; the other one is null."""

    name: str
    link: str | None
    file: str | None
