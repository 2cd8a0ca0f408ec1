# SPDX-License-Identifier: Apache-2.0
"""Results of a controller's calls about people: who signs in, who may what, what is one's own."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.value import Value


class ApiTokenResult(Value):
    """An API token: a role in the fleet, or a right on some pools.

    `secret`: only in the answer that made it; the database has its digest alone. `person`: whose own one it is: it
    gives what that person may do; null: nobody's.
    """

    name: str
    role: str | None
    created: str
    expires: str | None
    secret: str | None = None
    right: str | None = None
    pools: tuple[str, ...] = ()
    person: str | None = None


class QuotaResult(Value):
    """How much a person, each one of `@GROUP`, or everybody may have; null: that is not limited.

    `gpu_mib`: GPU memory of the vGPUs of all his desktops. `generation`: each change raises it.
    """

    who: str
    desktops: int | None
    running: int | None
    gpu_mib: int | None
    set_by: str
    generation: int


class LimitResult(Value):
    """What a quota limits for somebody: `desktops`, `running` or `gpu_mib`. `who`: whom the quota is for."""

    name: str
    used: int
    most: int
    who: str


class PersonResult(Value):
    """Somebody who signs in, or has a desktop. `realm`: who checks the password: local, oidc or ldap; null: none yet.

    `groups`: as at the last log-in. `password`: a new one, only in the answer that made it. `shown`: the full name, as
    a directory says it. `limits`: what quotas limit, `rights`: what he may, by his name, by a group or as
    everybody; both only of one person that is asked for.
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
    limits: tuple[LimitResult, ...] = ()
    rights: tuple[EntitlementResult, ...] = ()


class EntitlementResult(Value):
    """Who may what. `who`: a person, `@GROUP` or everybody. `right`: use, operate or manage a pool; or a role.

    `people`: how many people it is for now; null where that is not counted.
    """

    who: str
    right: str
    pool: str | None
    people: int | None = None


class MyselfResult(Value):
    """Who asks, and what he may do: a role in the fleet, and rights by pool. `kind`: local, token or person.

    `limits`: what quotas limit of what he may have. `own_password`: the controller has his password, and he can change
    it.
    """

    name: str
    kind: str
    role: str | None
    rights: Mapping[str, str]
    limits: tuple[LimitResult, ...] = ()
    own_password: bool = False


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
    does not say how. `usual_seconds`: so long its pool's desktops take to start, as a rule; null: not known, or it
    does not start now. `connect`: the ports to which the controller connects him, once it has an address.
    `console`: he has its console, too. `watched_by`: who else opened its screen last, at `watched_at`; `watched_until`:
    when that one closed it, null where that was not seen.
    `restart_failed`: the restart that somebody asked for last was not done.
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
    usual_seconds: int | None = None
    restart_failed: bool = False
    connect: tuple[int, ...] = ()
    console: bool = False
    watched_by: str | None = None
    watched_at: str | None = None
    watched_until: str | None = None


class DesktopPortsResult(Value):
    """The ports of a desktop to which users connect through the controller."""

    name: str
    ports: tuple[int, ...]


class DesktopConsoleResult(Value):
    """A desktop whose console can be opened. `is_watched`: `user` is somebody else, who sees who opens it."""

    name: str
    pool: str
    user: str | None
    profile: str | None
    is_watched: bool


class ConsoleTicketResult(Value):
    """What opens a desktop's console once: `ticket`, for so many `seconds`, with the session or token that asked."""

    name: str
    ticket: str
    seconds: int


class OpenDesktopResult(Value):
    """How a desktop is opened: by a `link`, or by a `file`, the text of an RDP file; the other one is null."""

    name: str
    link: str | None
    file: str | None


class UseResult(Value):
    """What people had in some time. `name`: of the person, group or pool; null: people without a group.

    `assigned_hours`: they had a desktop; `on_hours`: and it was on; `logged_on_hours`: and somebody was logged on, null
    where no guest said that. `gpu_gib_hours`: GPU memory that they were given, times hours. `gpu_used_gib_hours`: how
    much of it they really used, in the `gpu_known_hours` for which hosts could say that. `gpu_used_percent`: of a whole
    GPU's cores, on average, as far as that is known; `gpu_peak_mib`: the most memory of one desktop. All three are null
    where no host could say it. `idle`: so many desktops are on now, and nobody is logged on. `refused`: requests for a
    desktop, or to start one, by error code.
    """

    name: str | None
    assigned_hours: float
    on_hours: float
    logged_on_hours: float | None
    gpu_gib_hours: float
    gpu_used_gib_hours: float | None
    gpu_known_hours: float
    gpu_used_percent: float | None
    gpu_peak_mib: int | None
    idle: int
    refused: Mapping[str, int]
