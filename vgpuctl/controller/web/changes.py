# SPDX-License-Identifier: Apache-2.0
"""The changes that pages offer: for each its path, its call, its fields, where its button is, and how its plan reads.

Who may make one is what `policy` says of its call: there is no other rule here.

Size: one entry for each change.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from vgpuctl.controller.model import FleetCaller, Logon, Realm, Right, Role
from vgpuctl.controller.planning.phase import RECORD_CODES, PhaseWord
from vgpuctl.controller.planning.restarts import RESTARTABLE
from vgpuctl.controller.policy import FleetDecision, FleetTarget, decide, sees_pool
from vgpuctl.controller.routes import CALLS, FleetCall
from vgpuctl.controller.web.cells import with_query
from vgpuctl.controller.web.fields import ChangeField, FieldKind, RowsField, Typed
from vgpuctl.controller.web.parts import PageButton
from vgpuctl.controller.web.pool_form import POOL_FIELDS
from vgpuctl.value import EMPTY_MAPPING, Value


def _always(_: Any) -> bool:
    return True


class WebChange(Value):
    """A change. `title`, `words`, `back`: with `{FIELD}` for what is typed, `{now.FIELD}` for what `reads` answers.

    `words`: what it does, before it is done. `fields`: the first ones that are hidden say what it is about. `fixed`:
    arguments that it always has. `on`: the pages with its button -> the field that takes the name of what the page is
    about, empty for none. `when`: whether the thing on the page is such that the button makes sense. `reads`: the call
    that answers with what is changed; or `listed_in`: the call whose list has it, by its fields `listed_by`. `shows`:
    the fields of that and of the call's result that are compared; `spec` is compared key by key. `back`: where the
    browser goes then; `done`: what of `portal_views.DONE` that page says then. `style`: of its button. `answers`:
    warnings come after it was made, which its plan does not have.
    """

    path: str
    call: str
    button: str
    title: str
    fields: tuple[ChangeField | RowsField, ...]
    words: str
    back: str
    on: Mapping[str, str] = EMPTY_MAPPING
    when: Callable[[Any], bool] = staticmethod(_always)
    reads: str = ""
    shows: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = EMPTY_MAPPING
    style: str = ""
    note: str = ""
    answers: bool = False
    listed_in: str = ""
    listed_by: tuple[str, ...] = ()
    done: str = ""

    @property
    def fleet_call(self) -> FleetCall:
        """The call that it makes."""
        return CALLS[self.call]

    @property
    def is_new(self) -> bool:
        """Whether it makes something, whose name is typed."""
        return any(one.name == "name" and one.kind is not FieldKind.HIDDEN for one in self.single_fields)

    @property
    def new_name(self) -> str | None:
        """The field that names what must not be there yet; None: it may be there."""
        names = (one.name for one in self.single_fields if one.name in ("name", "who"))
        return next(names, None) if self.fixed.get("if_generation") == 0 else None

    @property
    def single_fields(self) -> tuple[ChangeField, ...]:
        """Its fields without lists of entries."""
        return tuple(one for one in self.fields if isinstance(one, ChangeField))

    @property
    def visible(self) -> tuple[ChangeField | RowsField, ...]:
        """The fields that a form shows."""
        return tuple(one for one in self.fields if isinstance(one, RowsField) or one.kind is not FieldKind.HIDDEN)

    @property
    def has_spec(self) -> bool:
        """Whether its form is that of a pool's spec."""
        return self.call == "ensure-pool"

    def filled(self, template: str, typed: Typed, now: Any = None, *, in_path: bool = False) -> str:
        """Return one of its texts with what is typed. `in_path`: the text is a path."""
        texts = {name: quote(text, safe="", errors="replace") if in_path else text for name, text in typed.items()}
        fields = dict.fromkeys((one.name for one in self.single_fields), "")
        return string.Formatter().vformat(template, (), {**fields, **texts, "now": now})

    def before(self, typed: Typed, now: Any = None) -> str:
        """Return the path of the page that its button is on."""
        page, field = next(iter(self.on.items()), ("", ""))
        if field and typed.get(field):
            return page.format(name=quote(typed[field], safe="", errors="replace"))
        back = self.filled(self.back, typed, now, in_path=True)
        return f"/{back.split('/')[1]}" if self.is_new else back

    def href(self, typed: Mapping[str, object]) -> str:
        """Return the path of its form, or of its plan if there is nothing to fill in."""
        return with_query(self.path, typed)


def buttons(
    caller: FleetCaller, page: str, target: FleetTarget, name: str = "", shown: object = None
) -> tuple[PageButton, ...]:
    """Return the buttons of a page. `name`: of what it is about; `shown`: that; `target`: to whom that belongs.

    Who has a desktop and sees nothing else of its pool gets those of *My desktops*.
    """
    if target.is_desktop and target.pool is not None and not sees_pool(caller, target.pool):
        own = [CHANGES[path] for path, operators in OWN.items() if CHANGES[operators].when(shown)]
        return tuple(PageButton(one.button, one.href({"name": name}), one.style) for one in own)
    given = [
        PageButton(change.button, change.href({change.on[page]: name} if change.on[page] else {}), change.style)
        for change in CHANGES.values()
        if page in change.on and may(caller, change, target) and change.when(shown)
    ]
    return tuple(sorted(given, key=lambda one: one.style == "danger"))


def may(caller: FleetCaller, change: WebChange, target: FleetTarget) -> bool:
    """Return whether somebody may make a change about a target."""
    return decide(caller, change.fleet_call.access, target) is FleetDecision.ALLOW


POOL, DESKTOP, HOST, IMAGE, PERSON = (
    f"/{kind}/{{name}}" for kind in ("pools", "desktops", "hosts", "images", "people")
)
FLEET, POOLS, HOSTS, IMAGES, PEOPLE, RIGHTS, TOKENS, MY_TOKENS = (
    "/", "/pools", "/hosts", "/images", "/people", "/rights", "/tokens", "/my/tokens",
)  # fmt: skip
_NAME = ChangeField("name", "Name", FieldKind.HIDDEN)
_NEW_NAME = ChangeField("name", "Name", help="letters, digits, . _ and -", required=True)
_GROUPS = ChangeField("groups", "Groups", FieldKind.LINES, "one a line; a directory's groups replace them at sign-in")
_HOST_SHOWS, _DESKTOP_SHOWS = ("state", "moves_live", "labels", "held"), ("user", "power", "host", "address")
_PERSON_SHOWS = ("realm", "groups", "disabled")
_QUOTA_SHOWS = ("desktops", "running", "gpu_mib")
_QUOTA_WORDS = "What is left empty is not limited. Nobody loses what he has."
_QUOTA_FIELDS = (
    ChangeField("desktops", "Desktops", FieldKind.NUMBER, "in all pools together"),
    ChangeField("running", "Running desktops", FieldKind.NUMBER),
    ChangeField("gpu_mib", "GPU memory", FieldKind.MEMORY, "of the vGPUs of all his desktops; 8GiB, or MiB"),
)
_GIVEN = ("who", "right", "pool", "people")


def _is_running(desktop: Any) -> bool:
    return bool(desktop.power == "on")


def _can_drain(host: Any) -> bool:
    """Return whether a host can be drained; one that is drained already can still have its desktops move."""
    return host.state in ("active", "cordoned") or (host.state == "draining" and not host.moves_live)


def _lacks_pools(shown: Any) -> bool:
    """Return whether a fleet has hosts and no pool; None: the page is not that of the fleet."""
    return shown is None or bool(shown.host_count and not shown.pools)


_ALL = (
    # Pools
    WebChange(
        "/change/new-pool", "ensure-pool", "Make a pool", "Make a pool", (_NEW_NAME, *POOL_FIELDS),
        "The pool {name} is made, and its desktops on the hosts that have room for them.", POOL,
        {FLEET: "", POOLS: ""}, _lacks_pools, shows=("spec",),
        fixed={"if_generation": 0}, style="first",
    ),
    WebChange(
        "/change/pool", "ensure-pool", "Change", "Change pool {name}", (_NAME, *POOL_FIELDS), "", POOL, {POOL: "name"},
        lambda pool: pool.state != "draining", "show-pool", ("spec",),
    ),
    WebChange(
        "/change/pause-pool", "pause-pool", "Pause", "Pause pool {name}",
        (_NAME, ChangeField("reason", "Reason", help="users of the pool see it")),
        "Nothing of {name} is made, started or refreshed until it is resumed. Its users keep their desktops; nobody "
        "gets another one.",
        POOL, {POOL: "name"}, lambda pool: pool.state == "active", "show-pool", ("state", "reason"),
    ),
    WebChange(
        "/change/resume-pool", "resume-pool", "Resume", "Resume pool {name}", (_NAME,),
        "Desktops of {name} are made, started and refreshed again.", POOL, {POOL: "name"},
        lambda pool: pool.state == "paused", "show-pool", ("state", "reason"), style="first",
    ),
    WebChange(
        "/change/assign", "assign", "Assign a desktop", "Assign a desktop of {pool}",
        (
            ChangeField("pool", "Pool", FieldKind.HIDDEN),
            ChangeField("user", "User", help="who gets it", required=True),
            ChangeField(
                "new_password", "Set a new one-time password", FieldKind.FLAG,
                "if users of the pool have accounts in their desktops; it is shown this once",
            ),
        ),
        "{user} gets a desktop of {pool}, or keeps the one that he has.", "/pools/{pool}", {POOL: "pool"},
        lambda pool: pool.state == "active" and pool.kind != "fixed", shows=("name", "user", "host"),
    ),
    WebChange(
        "/change/message-pool", "message-pool", "Message", "Message to users of {name}",
        (_NAME, ChangeField("text", "Text", help="one line", required=True)),
        "Everybody who is logged on in a desktop of {name} sees: {text}", POOL, {POOL: "name"},
        lambda pool: pool.kind != "fixed", shows=("reached",), answers=True,
    ),
    WebChange(
        "/change/delete-pool", "delete-pool", "Delete", "Delete pool {name}", (_NAME,),
        "{now.desktops} desktops of {name} are deleted with their disks; {now.assigned} of them have a user. What is "
        "on the disks is lost. The pool goes with the last desktop.",
        POOLS, {POOL: "name"}, lambda pool: pool.state != "draining", "show-pool", ("state",), style="danger",
    ),
    # Desktops
    WebChange(
        "/change/start-desktop", "start-desktop", "Start", "Start {name}", (_NAME,), "{name} is started.", DESKTOP,
        {DESKTOP: "name"}, lambda one: not _is_running(one), "show-desktop", _DESKTOP_SHOWS, style="first",
    ),
    WebChange(
        "/change/stop-desktop", "stop-desktop", "Shut down", "Shut down {name}", (_NAME,),
        "{name} is shut down, and stays off until it is started or assigned again.", DESKTOP, {DESKTOP: "name"},
        _is_running, "show-desktop", _DESKTOP_SHOWS,
    ),
    WebChange(
        "/change/restart-desktop", "restart-desktop", "Restart", "Restart {name}",
        (
            _NAME,
            ChangeField(
                "at_once", "Reset it at once", FieldKind.FLAG,
                "without asking its guest, which loses what is not saved; else it is reset if it ignores the request",
            ),
        ),
        "{name} restarts. Who has it keeps it, and its disk stays as it is; what is open and not saved there is lost.",
        DESKTOP, {DESKTOP: "name"}, lambda one: one.phase in RESTARTABLE, "show-desktop", _DESKTOP_SHOWS,
    ),
    WebChange(
        "/change/release", "release", "Release", "Release {name}", (_NAME,),
        "{name} is taken from {now.user}, and refreshed before anybody else gets it: what is in it is lost.",
        "/pools/{now.pool}",
        {DESKTOP: "name"}, lambda one: one.user is not None, "show-desktop", _DESKTOP_SHOWS,
    ),
    WebChange(
        "/change/new-password", "new-password", "New password", "New password in {name}", (_NAME,),
        "{now.user} gets a new one-time password in {name}. It is shown this once; the former one is no longer good.",
        DESKTOP, {DESKTOP: "name"}, lambda one: one.user is not None and one.logon == Logon.LOCAL, "show-desktop",
    ),
    WebChange(
        "/change/move-desktop", "move-desktop", "Move", "Move {name} from its lost host",
        (
            _NAME,
            ChangeField(
                "fenced", "How you know that the host is cut off", required=True,
                help="such as: power off at its BMC, seen at 14:05; the journal keeps it",
            ),
        ),
        "{name} is made on another host with the disks that it has on shared storage. If {now.host} still runs, both "
        "write to them, and they are damaged.",
        DESKTOP, {DESKTOP: "name"}, lambda one: one.phase == PhaseWord.UNKNOWN, "show-desktop", _DESKTOP_SHOWS,
        style="danger",
    ),
    WebChange(
        "/change/accept-desktop", "accept-desktop", "Accept", "Accept {name} as it is", (_NAME,),
        "{name} becomes what its VM's record on {now.host} says, where the database says something else.", DESKTOP,
        {DESKTOP: "name"}, lambda one: one.code in RECORD_CODES, "show-desktop", _DESKTOP_SHOWS,
    ),
    WebChange(
        "/change/delete-desktop", "delete-desktop", "Delete", "Delete {name}", (_NAME,),
        "{name} is deleted with its disks, and what is on them is lost. Its pool makes another one if it needs one.",
        "/pools/{now.pool}", {DESKTOP: "name"}, reads="show-desktop", shows=_DESKTOP_SHOWS, style="danger",
    ),
    # Hosts
    WebChange(
        "/change/new-host", "add-host", "Add a host", "Add a host",
        (
            _NEW_NAME,
            ChangeField("address", "Address", help="local, or ssh://USER@HOST[:PORT]; its agent runs", required=True),
            ChangeField("host_key", "SSH key", help="SHA256:…; without it known_hosts must have the host"),
            ChangeField("labels", "Labels", FieldKind.LABELS, "KEY=VALUE, one a line; pools choose hosts by them"),
            ChangeField(
                "lost_controller", "It obeys a controller whose database is lost", FieldKind.FLAG,
                "it is held until an import of its desktops is confirmed",
            ),
        ),
        "{name} obeys this controller from now on, and gets desktops of pools that fit.", HOST,
        {FLEET: "", HOSTS: ""}, lambda shown: shown is None or not shown.host_count,
        shows=("address", "host_key", "labels", "machine_id", "driver", "agent_version"),
        style="first",
    ),
    WebChange(
        "/change/accept-host", "accept-host", "Accept", "Accept {name} as it is",
        (_NAME, ChangeField("host_key", "New SSH key", help="SHA256:…, if that changed")),
        "{name} goes on as it is now: {now.held}", HOST, {HOST: "name"}, lambda host: host.held is not None,
        "show-host", _HOST_SHOWS, style="first", answers=True,
    ),
    WebChange(
        "/change/cordon-host", "cordon-host", "Cordon", "Cordon {name}", (_NAME,),
        "No new desktops are made on {name}. Those there stay.", HOST, {HOST: "name"},
        lambda host: host.state == "active", "show-host", _HOST_SHOWS,
    ),
    WebChange(
        "/change/uncordon-host", "uncordon-host", "Uncordon", "Uncordon {name}",
        (
            _NAME,
            ChangeField(
                "unchecked", "Do not check its driver", FieldKind.FLAG,
                "after maintenance; you know that it works with the guests' drivers",
            ),
        ),
        "Desktops are made on {name} again; after maintenance those there are started.", HOST, {HOST: "name"},
        lambda host: host.state != "active", "show-host", _HOST_SHOWS, style="first",
    ),
    WebChange(
        "/change/drain-host", "drain-host", "Drain", "Drain {name}",
        (
            _NAME,
            ChangeField(
                "live", "Move desktops while they run", FieldKind.FLAG,
                "those with a user, and all of fixed pools; not with maintenance",
            ),
            ChangeField(
                "maintenance", "For maintenance", FieldKind.FLAG,
                "its desktops are shut down and stay there, each when nobody is logged on",
            ),
            ChangeField("deadline_minutes", "Wait so many minutes for users", FieldKind.NUMBER, "with maintenance"),
            ChangeField("force", "Do not wait for users", FieldKind.FLAG, "with maintenance"),
        ),
        "No new desktops are made on {name}. Those without a user are deleted, and made on other hosts; those with a "
        "user stay, or move while they run; for maintenance all of its {now.desktops} are shut down instead.",
        HOST, {HOST: "name"}, _can_drain, "show-host", _HOST_SHOWS,
    ),
    WebChange(
        "/change/label-host", "label-host", "Labels", "Labels of {name}",
        (_NAME, ChangeField("labels", "Labels", FieldKind.LABELS, "KEY=VALUE, one a line; pools choose hosts by them")),
        "Desktops that are there stay, whatever their pool asks for.", HOST, {HOST: "name"}, reads="show-host",
        shows=_HOST_SHOWS,
    ),
    WebChange(
        "/change/remove-host", "remove-host", "Remove", "Remove {name}", (_NAME,),
        "{name} leaves the fleet. It must have no desktops.", HOSTS, {HOST: "name"}, reads="show-host", style="danger",
    ),
    # Images
    WebChange(
        "/change/new-image", "ensure-image", "Add an image", "Add an image",
        (
            _NEW_NAME,
            ChangeField("url", "URL", help="where hosts fetch it; it needs the SHA-256"),
            ChangeField("sha256", "SHA-256", help="what sha256sum prints of the file"),
            ChangeField("path", "Path", help="instead of the URL: of a file that all hosts have, such as on NFS"),
            ChangeField("folder", "Folder", help="of copies on hosts; without it /srv/images"),
            ChangeField("version", "Version", help="for people; without it 1"),
            ChangeField("os", "System", FieldKind.CHOICE, options=("linux", "windows")),
        ),
        "Pools can use {name}. Hosts fetch a URL's copy when a pool does.", IMAGE,
        {FLEET: "", IMAGES: ""}, _lacks_pools,
        shows=("version", "os", "url", "path", "sha256"), fixed={"if_generation": 0},
        note="A file of the controller's machine is added there: vgpuctl controller ensure-image NAME --file FILE",
    ),
    WebChange(
        "/change/delete-image", "delete-image", "Delete", "Delete image {name}", (_NAME,),
        "{name} is deleted. Hosts delete their copies; a file that nobody copied stays.", IMAGES, {IMAGE: "name"},
        reads="show-image", style="danger",
    ),
    # People, rights, quotas, tokens
    WebChange(
        "/change/new-person", "ensure-person", "Add a person", "Add a person",
        (
            ChangeField("name", "Name", help="as he signs in", required=True),
            _GROUPS,
            ChangeField(
                "realm", "Signs in by", FieldKind.CHOICE, "local: with a password that you set next",
                tuple(map(str, Realm)),
            ),
        ),
        "{name} is known here. What he may do is a right.", PERSON, {PEOPLE: ""}, shows=_PERSON_SHOWS,
        fixed={"if_generation": 0}, style="first",
    ),
    WebChange(
        "/change/groups", "ensure-person", "Groups", "Groups of {name}", (_NAME, _GROUPS), "", PERSON,
        {PERSON: "name"}, reads="show-person", shows=_PERSON_SHOWS,
    ),
    WebChange(
        "/change/set-password", "set-password", "New password", "New password of {name}", (_NAME,),
        "{name} gets a new password, which is shown this once. He is signed out everywhere.", PERSON,
        {PERSON: "name"}, lambda person: person.realm in (None, Realm.LOCAL), "show-person",
    ),
    WebChange(
        "/change/disable-person", "ensure-person", "Disable", "Disable {name}", (_NAME,),
        "{name} is signed out and cannot sign in any more. He keeps his desktops.", PERSON, {PERSON: "name"},
        lambda person: not person.disabled, "show-person", _PERSON_SHOWS, {"disabled": True},
    ),
    WebChange(
        "/change/enable-person", "ensure-person", "Enable", "Enable {name}", (_NAME,), "{name} can sign in again.",
        PERSON, {PERSON: "name"}, lambda person: person.disabled, "show-person", _PERSON_SHOWS, {"disabled": False},
    ),
    WebChange(
        "/change/delete-person", "delete-person", "Delete", "Delete {name}", (_NAME,),
        "{name} is deleted with all that he may do. He must have no desktop.", PEOPLE, {PERSON: "name"},
        reads="show-person", style="danger",
    ),
    WebChange(
        "/change/entitle", "entitle", "Give a right", "Give a right",
        (
            ChangeField("who", "Who", help="a person, @GROUP or everybody", required=True),
            ChangeField(
                "right", "Right", FieldKind.CHOICE,
                "use: have a desktop; operate: give and take desktops; manage: change the pool. Without a pool a role "
                "in the fleet: viewer, operator or admin",
                (*map(str, Right), *map(str, Role)), required=True,
            ),
            ChangeField("pool", "Pool", FieldKind.CHOICE, "none: the whole fleet", "pools"),
        ),
        "It holds at once, also for who has signed in.", RIGHTS, {RIGHTS: "", POOL: "pool", PERSON: "who"},
        listed_in="list-entitlements", listed_by=("who", "pool"), shows=_GIVEN,
    ),
    WebChange(
        "/change/revoke", "revoke", "Revoke", "Take back what {who} may",
        (ChangeField("who", "Who", FieldKind.HIDDEN), ChangeField("pool", "Pool", FieldKind.HIDDEN)),
        "{who} loses it at once. Desktops that people have stay theirs until they are released.", RIGHTS,
        shows=_GIVEN, style="danger",
    ),
    WebChange(
        "/change/new-quota", "ensure-quota", "Set a quota", "Set a quota",
        (
            ChangeField("who", "Who", help="a person, @GROUP for each one of it, or everybody", required=True),
            *_QUOTA_FIELDS,
        ),
        _QUOTA_WORDS, RIGHTS, {RIGHTS: ""}, shows=("who", *_QUOTA_SHOWS), fixed={"if_generation": 0},
    ),
    WebChange(
        "/change/quota", "ensure-quota", "Set a quota", "Quota of {who}",
        (ChangeField("who", "Who", FieldKind.HIDDEN, required=True), *_QUOTA_FIELDS), _QUOTA_WORDS, RIGHTS,
        {PERSON: "who"}, listed_in="list-quotas", listed_by=("who",), shows=_QUOTA_SHOWS,
    ),
    WebChange(
        "/change/delete-quota", "delete-quota", "Delete", "Delete the quota of {who}",
        (ChangeField("who", "Who", FieldKind.HIDDEN),),
        "The next quota decides: that of his groups, or everybody's.", RIGHTS, style="danger",
    ),
    WebChange(
        "/change/new-token", "add-token", "Add a token", "Add an API token",
        (
            _NEW_NAME,
            ChangeField("role", "Role in the fleet", FieldKind.CHOICE, "or a right on pools", tuple(map(str, Role))),
            ChangeField("right", "Right on pools", FieldKind.CHOICE, options=tuple(map(str, Right))),
            ChangeField("pools", "Pools", FieldKind.LINES, "for the right, one a line"),
            ChangeField("days", "Expires after days", FieldKind.NUMBER, "1 to 3650; without it never"),
        ),
        "Who has its secret may do that. The secret is shown this once.", TOKENS, {TOKENS: ""}, style="first",
    ),
    WebChange(
        "/change/delete-token", "delete-token", "Delete", "Delete the token {name}",
        (_NAME, ChangeField("person", "Person", FieldKind.HIDDEN)),
        "It opens nothing any more.", TOKENS, style="danger",
    ),
    # One's own desktops
    WebChange(
        "/my/release", "release", "Give back", "Give back {name}?", (_NAME,),
        "What is in it is deleted, also what you have not saved elsewhere. Another person gets it then, clean.", "/my",
        reads="show-desktop", done="release",
    ),
    WebChange(
        "/my/stop", "stop-desktop", "Shut down", "Shut down {name}?", (_NAME,),
        "What is open in it and not saved is lost. A desktop that is yours alone stays yours with its files; it is off "
        "until you start it. One that is fresh each time may be given back by that: then its files are deleted, too.",
        "/my", reads="show-desktop", done="stop",
    ),
    WebChange(
        "/my/new-token", "add-my-token", "Make a token", "Make a token",
        (_NEW_NAME, ChangeField("days", "Expires after days", FieldKind.NUMBER, "1 to 90; 30 if you leave it empty")),
        "Who has its secret may do all that you may, until you delete it or it expires. The secret is shown this once.",
        MY_TOKENS, {MY_TOKENS: ""}, style="first",
    ),
    WebChange(
        "/my/delete-token", "delete-my-token", "Delete", "Delete the token {name}", (_NAME,),
        "It opens nothing any more.", MY_TOKENS, style="danger",
    ),
    WebChange(
        "/my/restart", "restart-desktop", "Restart", "Restart {name}?", (_NAME,),
        "What is open in it and not saved is lost. It stays yours: log on again when it has started.", "/my",
        reads="show-desktop", done="restart",
    ),
    WebChange(
        "/my/new-password", "new-password", "New password", "New password in {name}", (_NAME,),
        "You get a new one-time password, which is shown this once. The former one is no longer good.", "/my",
        reads="show-desktop",
    ),
)  # fmt: skip
OWN = {
    "/my/stop": "/change/stop-desktop", "/my/restart": "/change/restart-desktop",
    "/my/new-password": "/change/new-password", "/my/release": "/change/release",
}  # fmt: skip
"""A change of one's own desktop -> that of its operators."""
CHANGES: Mapping[str, WebChange] = {change.path: change for change in _ALL}
"""Every change by its path."""
