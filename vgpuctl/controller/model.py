# SPDX-License-Identifier: Apache-2.0
"""The values that the controller's modules share: what is wanted, and what hosts report.

Times are seconds since 1970 by the database's clock. A desktop's phase is computed from what is wanted, the last
report and its age (`planning.phase`), and stored nowhere.

Size: values alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from vgpuctl.model.host_room import HostRoom
from vgpuctl.model.image_copy import CopyState
from vgpuctl.value import EMPTY_MAPPING, Value


class PoolKind(StrEnum):
    """`floating`: a user gets any desktop, which is refreshed after him. `dedicated`: a user keeps his desktop.

    `fixed`: a number of VMs without users, for computing or training.
    """

    FLOATING = "floating"
    DEDICATED = "dedicated"
    FIXED = "fixed"


class OnLogoff(StrEnum):
    """What happens when a dedicated desktop's user has logged off. A floating one is always refreshed."""

    KEEP = "keep"
    STOP = "stop"
    REFRESH = "refresh"


class Logon(StrEnum):
    """Who may log on in an assigned desktop besides the guest's administrators: its user, and nobody else.

    `domain`: a user whom the guest knows. `local`: one who gets an account in it, with a one-time password.
    """

    DOMAIN = "domain"
    LOCAL = "local"


class ReadyWhen(StrEnum):
    """When a desktop can take a user: it runs, its guest's agent or helper answers, or a port of it is open."""

    RUNNING = "running"
    GUEST = "guest"
    PORT = "port"


class PoolState(StrEnum):
    """`paused`: nothing is made, started or refreshed. `draining`: it is being deleted; nobody gets a desktop."""

    ACTIVE = "active"
    PAUSED = "paused"
    DRAINING = "draining"


class FleetHostState(StrEnum):
    """`cordoned`: no new desktops. `draining`: none, and those without a user leave (`FleetHost.moves_live`: all do).

    `maintenance`: none, and those there are stopped, so that the host can be changed and booted; they stay there.
    """

    ACTIVE = "active"
    CORDONED = "cordoned"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"


class HostChoice(StrEnum):
    """Which host gets a new desktop: where least is wasted, where most is free, or any."""

    LEAST_WASTE = "least-waste"
    SPREAD = "spread"
    RANDOM = "random"


class Role(StrEnum):
    """What somebody may do in the whole fleet: everything; work with pools and desktops; look."""

    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"


class Right(StrEnum):
    """What somebody may do with one pool; each includes the ones before.

    `use`: have a desktop. `operate`: give and take desktops, start and stop them. `manage`: change what the pool is.
    """

    USE = "use"
    OPERATE = "operate"
    MANAGE = "manage"


class Realm(StrEnum):
    """Who checks a person's password: the controller itself, an OIDC issuer, an LDAP server."""

    LOCAL = "local"
    OIDC = "oidc"
    LDAP = "ldap"


class Schedule(Value):
    """On these weekdays (0: Monday), from `start` to `until`, `spare` desktops are ready at least.

    Minutes after midnight in the pool's time zone; `until` is later than `start`, at most 1440. `lead_minutes`: so long
    before `start` they begin to be made ready. Of several that hold at a time the last one counts.
    """

    days: tuple[int, ...]
    start: int
    until: int
    spare: int
    lead_minutes: int = 0


class PoolSpec(Value):
    """What an admin writes about a pool, see `planning.pool_spec`.

    `profiles`: the alternatives, best first (`2B` fits any model); empty for whole GPUs or VFs. `vm`: further fields of
    a VM spec, checked, as text. `image`: the name of an image of the fleet. `names`: a pattern such as `office-{:03}`.
    `maximum`: how many desktops at most; of a fixed pool: exactly. `spare`: how many are ready without a user.
    `per_user`: how many a user may have. `boot_minutes`: a desktop that is not ready after so long has failed.
    `logon`: whom its guest lets log on; None: the controller changes nothing there.
    `lease_days`: a user's desktop is released after so long; None: never.
    `starts_per_host`: how many start or are made at a time on one host. `hosts`: labels that a host must have.
    `apart`: desktops of this pool are on as many hosts as possible. `prepared`: each desktop is set up once, and a
    refresh goes back to that. `open`: how a user opens his desktop: `rdp`, a file with the keys `rdp` in addition to
    those of `rdp_file`; or the template of a link. `addresses`: subnets in which its address is; empty: anywhere.
    `dns_name`: the pattern of a name in the site's DNS that is its address instead. `connect`: ports to which the
    controller connects its user. `console`: its user opens the VM's screen, as operators do, from its firmware on.
    """

    kind: PoolKind
    image: str
    names: str
    maximum: int
    profiles: tuple[str, ...] = ()
    vm: Mapping[str, Any] = EMPTY_MAPPING
    spare: int = 0
    per_user: int = 1
    ready_when: ReadyWhen = ReadyWhen.RUNNING
    port: int = 3389
    boot_minutes: int = 15
    logon: Logon | None = None
    on_logoff: OnLogoff = OnLogoff.REFRESH
    lease_days: int | None = None
    starts_per_host: int = 4
    max_unavailable: int = 1
    hosts: Mapping[str, str] = EMPTY_MAPPING
    choice: HostChoice = HostChoice.LEAST_WASTE
    apart: bool = False
    time_zone: str = "UTC"
    schedules: tuple[Schedule, ...] = ()
    prepared: bool = False
    open: str | None = None
    rdp: Mapping[str, int | str] = EMPTY_MAPPING
    addresses: tuple[str, ...] = ()
    dns_name: str | None = None
    connect: tuple[int, ...] = ()
    console: bool = False


class Pool(Value):
    """A pool. `generation` grows with each change by people; it is the ETag. `reason`: why it is paused, for people.

    `image_id`: of the image that `spec` names. `paused_by_errors`: the controller paused it after too many errors.
    """

    id: str
    name: str
    spec: PoolSpec
    state: PoolState = PoolState.ACTIVE
    generation: int = 1
    reason: str | None = None
    paused_by_errors: bool = False
    image_id: str = ""


class Image(Value):
    """A base image. `path`: the file on each host that has it, or on storage that hosts share.

    `file`: of the controller's machine, which it is sent from; `url`: where agents fetch it; None both: it is at `path`
    already. `retired`: no pool may use it any more.
    """

    id: str
    name: str
    version: str
    path: str
    os: str
    sha256: str | None = None
    bytes: int | None = None
    retired: bool = False
    generation: int = 1
    file: str | None = None
    url: str | None = None

    @property
    def is_copied(self) -> bool:
        """Whether hosts get copies of it."""
        return self.file is not None or self.url is not None


class HostImage(Value):
    """An image on a host. `copied`: the controller brought it there, and has it deleted once nothing uses it.

    `have`: how many of its `bytes` are there. `code`, `error`, `hint`: why it failed, or why it was not deleted.
    `errors`: how many followed each other; `not_before`: the next try.
    """

    host_id: str
    image_id: str
    path: str
    copied: bool
    state: CopyState = CopyState.MISSING
    bytes: int | None = None
    have: int = 0
    code: str | None = None
    error: str | None = None
    hint: str | None = None
    errors: int = 0
    not_before: float = 0.0


class FleetHost(Value):
    """A host. `address`: `local`, `agent:/PATH` or `ssh://USER@ADDRESS[:PORT]`. `host_key`: SHA256:… of its SSH key.

    `machine_id`, `boot_id`, `driver`, `agent_version`: as its agent last said. `held`: why nothing is changed there;
    an admin decides. `seen_at`: when its agent last answered. `moves_live`: while it is drained, desktops that have a
    user, and those of fixed pools, move to other hosts as they are.
    """

    id: str
    name: str
    address: str
    host_key: str | None = None
    labels: Mapping[str, str] = EMPTY_MAPPING
    state: FleetHostState = FleetHostState.ACTIVE
    machine_id: str | None = None
    boot_id: str | None = None
    driver: str | None = None
    agent_version: str | None = None
    held: str | None = None
    seen_at: float | None = None
    problem: str | None = None
    generation: int = 1
    moves_live: bool = False


class AgentFacts(Value):
    """What a host's agent says of its host."""

    machine_id: str
    boot_id: str | None
    driver: str | None
    agent_version: str


class HostLease(Value):
    """A host belongs to one controller at a time. `epoch` grows with each new holder."""

    host_id: str
    holder: str
    epoch: int
    expires_at: float


class StoredRoom(Value):
    """What a host said that it has room for. `version`: another one with each change, and each desktop placed there.

    `refused`: the profiles for which it had no room just now, and what it said.
    """

    room: HostRoom
    version: int
    refused: Mapping[str, str] = EMPTY_MAPPING


class OnItsWay(NamedTuple):
    """A desktop that a host is to get, and that it never had, or that moves to it."""

    host_id: str
    pool_id: str
    name: str
    profile: str | None


class DesktopVgpu(Value):
    """A vGPU of a desktop's VM, or a whole GPU. `gpu`: the PCI address of the GPU that it is on.

    `framebuffer_mib` None: the whole GPU, or not known. `placement`: where it is on a GPU with mixed sizes.
    """

    gpu: str
    profile: str | None = None
    framebuffer_mib: int | None = None
    placement: int | None = None


class DesktopReport(Value):
    """What a host last said of a desktop's VM; None in `Desktop.report`: the host never had it.

    `exists`: the VM is there. `generation`, `dirty`, `user`: of the mark in its record. `guest_users`: who is logged on
    in the guest; None: not known. `ready`: the pool's `ready_when` holds. `code`, `hint`: of the last action's error.
    `running_since`: since when it is seen running; None: it does not run. `boot_id`: of the host's boot in which it was
    seen. `logged_on_seen`: a log-on was seen since its user was let in; `empty_since`: since when nobody is logged on
    after that; `logged_off`: that was seen twice, 30 s apart. `crashes`: when it stopped by itself while
    nobody had it, in the last 20 minutes. `superseded`: its user got another one while its host was silent.
    `planning.host_look` keeps these. `record_user`, `record_generation`: of the mark that contradicts the row; the
    generation is None where none does. `driver`: NVIDIA's in the guest, as it last said. `preparing`: its guest sets
    itself up, once, and its disk is not kept yet. `disks`: the files of its disks, as they were at the generation
    `disks_generation` of its VM's record. `moved`: it came from a lost host with them, and its VM has no image; until
    it is made they are those that it gets.
    `let_in`: whom the guest's helper lets log on, as it last confirmed for this disk (`planning.logons`); None: nothing
    was asked of it. `logon_due`: it must let in another one before the desktop is handed out, or is ready.
    `vgpus`: what of GPUs the VM has, or keeps while it is off. `boot_seconds`: so long its last start took until it
    could take a user; None: not seen. `address_problem`: why it has no address. `after_silence`: nobody reported from
    its guest for a while after a log-on, as when it boots again. `refused_by`: ids of the hosts to which it could not
    move since its own one is drained.
    """

    exists: bool
    state: str | None = None
    generation: int = 0
    dirty: bool = False
    user: str | None = None
    image: str | None = None
    guest_users: tuple[str, ...] | None = None
    address: str | None = None
    ready: bool = False
    running_since: float | None = None
    code: str | None = None
    error: str | None = None
    hint: str | None = None
    seen_at: float = 0.0
    boot_id: str | None = None
    logged_on_seen: bool = False
    empty_since: float | None = None
    logged_off: bool = False
    crashes: tuple[float, ...] = ()
    record_user: str | None = None
    record_generation: int | None = None
    driver: str | None = None
    superseded: bool = False
    preparing: bool = False
    disks: tuple[str, ...] = ()
    disks_generation: int | None = None
    moved: bool = False
    let_in: str | None = None
    logon_due: bool = False
    vgpus: tuple[DesktopVgpu, ...] = ()
    boot_seconds: float | None = None
    address_problem: str | None = None
    after_silence: bool = False
    refused_by: tuple[str, ...] = ()


class Desktop(Value):
    """A desktop: a row of the database. `id` is its VM's uuid; `mac` and `name` are unique in the fleet.

    `host_id` None: no host was chosen yet. `power_on`: it should run. `absent`: it should be deleted; the row goes when
    the host says that the VM is gone. `generation` grows with each assignment and release: the host's mark must follow.
    `user`: who has it. `handed_out`: its host confirmed the assignment, so the user may be shown its address.
    `not_before`: the next try after an error. `errors`: how many followed each other. `restart_at`: when its restart
    was asked for; None: it was not, or it is done (`planning.restarts`). `restart_at_once`: its guest is not asked
    first. `restart_error`: why that restart failed. `moving_to`: the host to which it moves as it is; until that has
    ended, `host_id` is the one that it comes from, and `report` says what it was before.
    """

    id: str
    pool_id: str
    name: str
    mac: str
    image_id: str
    host_id: str | None = None
    profile: str | None = None
    power_on: bool = True
    absent: bool = False
    generation: int = 1
    user: str | None = None
    assigned_at: float | None = None
    handed_out: bool = False
    lease_until: float | None = None
    not_before: float = 0.0
    errors: int = 0
    created_at: float = 0.0
    report: DesktopReport | None = None
    restart_at: float | None = None
    restart_at_once: bool = False
    restart_error: str | None = None
    moving_to: str | None = None


class NewDesktop(Value):
    """A desktop that a pool's tick adds: its name, and the MAC address of its first network card."""

    name: str
    mac: str


class PoolChanges(Value):
    """What a pool's tick changes. `create`: new desktops; `retire`: ids of those that become absent.

    `release`: ids of those that lose their user. `pause`: why the pool is paused; None: it is not. `move_image`: ids of
    those whose wanted image becomes the pool's present image.
    """

    create: tuple[NewDesktop, ...] = ()
    retire: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    pause: str | None = None
    move_image: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self == PoolChanges()


class FieldChange(Value):
    """A field that a change changed. `before`, `after`: as short texts; None: it had no value, or has none."""

    field: str
    before: str | None
    after: str | None


class FleetEvent(Value):
    """An entry of the fleet's journal, which is only added to.

    `actor`: who did it, by name; `actor_kind`: local, token or person, or `controller`, which did it by itself; None:
    an older version wrote the entry. `address`: where the request came from. `changed`: before and after.
    """

    id: int
    at: float
    kind: str
    text: str
    actor: str
    pool: str | None = None
    desktop: str | None = None
    host: str | None = None
    user: str | None = None
    actor_kind: str | None = None
    address: str | None = None
    changed: tuple[FieldChange, ...] = ()


class Restored(Value):
    """Where a database's content came from, if it was restored or imported.

    `former`: the incarnations that had the desktops before; hosts that obey one of them are adopted. `begun_at`: when
    it was restored or imported, as long as nobody has confirmed that; None: nothing waits for that. `source`: for
    people. `imported_pools`: ids of pools of which only the hosts' records are known: they are paused until their specs
    are given. `taken_at`: the time of the backup; None: an import.
    """

    former: tuple[str, ...] = ()
    begun_at: float | None = None
    source: str = ""
    imported_pools: tuple[str, ...] = ()
    taken_at: float | None = None


class JournalLimits(Value):
    """How long entries of the journal are kept, and how many older than `LEAST_EVENT_DAYS` at most.

    The database itself lets nobody delete an entry of those last days, nor change any.
    """

    days: int = 90
    entries: int = 1_000_000


LEAST_EVENT_DAYS = 7


class ApiToken(Value):
    """An API token: a role in the fleet, or a right on some pools. Only the digest of its secret is kept.

    `pools`: their names; a pool that was made again is another one. `expires_at` None: never. `person`: whose own token
    it is: it gives what he may do.
    """

    name: str
    role: Role | None
    created_at: float
    expires_at: float | None = None
    right: Right | None = None
    pools: tuple[str, ...] = ()
    person: str | None = None


class Person(Value):
    """Somebody who signs in, or has a desktop. `realm` None: he never signed in and has no password here.

    `groups`: as at his last log-in, or as an admin set them. `shown`: his full name, untrusted. `generation`: of what
    an admin sets.
    """

    name: str
    realm: Realm | None = None
    groups: tuple[str, ...] = ()
    disabled: bool = False
    has_password: bool = False
    shown: str | None = None
    signed_in_at: float | None = None
    generation: int = 1


EVERYBODY = "everybody"
"""Each person who can sign in; no person has this name."""
GROUP_MARK = "@"
"""What a group's name begins with where people are named, too."""


class Entitlement(Value):
    """Who may what. `who`: a person's name, `@GROUP` or `everybody`, which is each person who can sign in.

    `right`: on the pool of this name; without a pool it is a role in the fleet.
    """

    who: str
    right: Right | Role
    pool: str | None = None


class Quota(Value):
    """How much each of those may have whom `who` names: a person, `@GROUP` or `everybody`. None: it is not limited.

    `gpu_mib`: GPU memory of all vGPUs of a person's desktops. `set_by`: who set it. `generation`: of its changes.
    """

    who: str
    desktops: int | None = None
    running: int | None = None
    gpu_mib: int | None = None
    set_by: str = ""
    generation: int = 1


class QuotaLimit(Value):
    """The most of something that a person may have, and the quota that says so."""

    most: int
    quota: Quota


class QuotaUse(Value):
    """How much a person has of what quotas limit."""

    desktops: int = 0
    running: int = 0
    gpu_mib: int = 0


class MeasuredUse(Value):
    """What desktops really used of GPUs, as far as their hosts could say it.

    `busy_seconds`: time multiplied by the part of a whole GPU's cores that they used; `memory_mib_seconds`: by the
    framebuffer that they used. The `known` ones: for how long that is known. `memory_peak_mib`: the highest; None: it
    is not known.
    """

    busy_known_seconds: float = 0.0
    busy_seconds: float = 0.0
    memory_known_seconds: float = 0.0
    memory_mib_seconds: float = 0.0
    memory_peak_mib: int | None = None


class DesktopUse(Value):
    """What people had of desktops in some time. `name`: of the person, group or pool; empty: people without a group.

    `known_seconds`: while they were on, and it was known whether somebody was logged on. `idle`: how many are on now,
    and nobody is logged on. `refused`: how many requests, by reason. `measured`: what they used of GPUs.
    """

    name: str
    assigned_seconds: float = 0.0
    on_seconds: float = 0.0
    logged_on_seconds: float = 0.0
    known_seconds: float = 0.0
    gpu_mib_seconds: float = 0.0
    idle: int = 0
    refused: Mapping[str, int] = EMPTY_MAPPING
    measured: MeasuredUse = MeasuredUse()


class WebSession(Value):
    """Somebody who is signed in with a browser. Only the digest of its secret is kept."""

    person: str
    created_at: float
    seen_at: float
    expires_at: float
    address: str


class CallerKind(StrEnum):
    """Who asks: the owner of the controller's socket or root, a program with an API token, a signed-in person."""

    LOCAL = "local"
    TOKEN = "token"  # noqa: S105 - no secret
    PERSON = "person"


class FleetCaller(Value):
    """Who asks, and what he may do: a role in the fleet, and rights on pools, by their names.

    A caller who is local comes through the socket, so files that he names are of this machine. `address`: where his
    request comes from. `token`: the name of the token of his own by which a person asks; None: he has a session.
    `session`: a digest of the secret by which he asks; empty: he comes through the socket.
    """

    name: str
    role: Role | None
    kind: CallerKind = CallerKind.TOKEN
    rights: Mapping[str, Right] = EMPTY_MAPPING
    address: str | None = None
    token: str | None = None
    session: str = ""

    @property
    def is_local(self) -> bool:
        """Whether he comes through the socket."""
        return self.kind is CallerKind.LOCAL

    @property
    def key(self) -> str:
        """A text that no other caller has: a token may have a person's name."""
        return f"{self.kind}:{self.name}"
