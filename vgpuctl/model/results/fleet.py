# SPDX-License-Identifier: Apache-2.0
"""What the controller's commands and its API answer. Times are UTC, RFC 3339; null: never, or not known.

Size: values alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from vgpuctl.value import EMPTY_MAPPING, Value


class DatabaseResult(Value):
    """A database, by its URL without the password."""

    database: str


class DemoEventResult(Value):
    """What happened in the demonstration, and when by its own clock, such as `07:40`."""

    time: str
    text: str


class DemoResult(Value):
    """What happened in the demonstration, in order."""

    events: tuple[DemoEventResult, ...]


class FleetResult(Value):
    """The controller that answered, and what the caller may do there: `admin`, `operator` or `viewer`.

    `incarnation`: of its database. `holder`: the name by which this controller holds hosts.
    """

    version: str
    caller: str
    role: str
    incarnation: str
    holder: str
    pools: int
    hosts: int
    desktops: int


class BackupResult(Value):
    """A backup file. `version`: of its tables; `incarnation`: of the database; `rows`: how many each table has."""

    file: str
    version: str
    incarnation: str
    taken: str
    rows: Mapping[str, int]


class RestoredDatabaseResult(Value):
    """A restored database: its new incarnation, and the former one, whose desktops the hosts have."""

    database: str
    incarnation: str
    former: str
    rows: Mapping[str, int]


class UnsettledDesktopResult(Value):
    """What a host has of a desktop, where the database says something else. `user`: whose it is on the host."""

    desktop: str
    host: str
    user: str | None
    why: str


class FleetRestoreResult(Value):
    """A database that was restored or imported. `waits`: nobody has confirmed that yet. `source`: null: it was not.

    `taken`: the time of the backup, where it is known: people and rights are those of then. `former`: the incarnations
    that it came from. `kept`: desktops that nobody gets, because their VM is another person's than the database says.
    `unknown`: VMs of the former incarnations that the database does not have. `silent`: hosts that did not answer, and
    why. `pools_without_spec`: imported pools, which wait for their specs.
    """

    waits: bool
    source: str | None
    taken: str | None
    begun: str | None
    incarnation: str
    former: tuple[str, ...]
    kept: tuple[UnsettledDesktopResult, ...]
    unknown: tuple[UnsettledDesktopResult, ...]
    silent: Mapping[str, str]
    pools_without_spec: tuple[str, ...]


class ImportedDesktopsResult(Value):
    """What was added from records on hosts. `problems`: what could not be added, and why."""

    desktops: tuple[str, ...]
    pools: tuple[str, ...]
    images: tuple[str, ...]
    problems: tuple[str, ...]


class PoolResult(Value):
    """A pool. `spec`: as its spec file has it. `counts`: desktops by phase. `generation`: the ETag of its URL.

    `reason`: why it is paused; null if it is not.
    """

    name: str
    kind: str
    state: str
    reason: str | None
    image: str
    profiles: tuple[str, ...]
    maximum: int
    spare: int
    desktops: int
    ready: int
    assigned: int
    counts: Mapping[str, int]
    generation: int
    spec: Mapping[str, Any] = EMPTY_MAPPING


class PoolMessageResult(Value):
    """How many desktops of a pool showed a message to who is logged on there; `failed`: those that did not, and why."""

    pool: str
    reached: int
    failed: Mapping[str, str]


class DesktopResult(Value):
    """A desktop. `phase`: what it is doing, computed from what is wanted and the host's last report; `why` says more.

    `address`: only of one whose host confirmed its user. `seen`: when its host last said something of it.
    `code`, `error`, `hint`: of what failed last. `logon`: whom its guest lets log on, as its pool's spec says.
    `restart_error`: why the restart failed that somebody asked for last; null: it did not. `moving_to`: the host to
    which it moves now, as it is.
    """

    name: str
    id: str
    pool: str
    phase: str
    why: str | None
    user: str | None
    host: str | None
    profile: str | None
    image: str
    mac: str
    address: str | None
    power: str
    assigned: str | None
    lease_until: str | None
    seen: str | None
    code: str | None
    error: str | None
    hint: str | None
    generation: int
    logon: str | None = None
    restart_error: str | None = None
    moving_to: str | None = None


class AssignedDesktopResult(DesktopResult):
    """A desktop that was given to a user. `password`: a one-time password of his account there, shown this once.

    null: nothing was asked of the guest (the pool has no `logon: local`, or he had the desktop before), or it could not
    be set yet; then a warning says so.
    """

    password: str | None = None


class FleetHostResult(Value):
    """A host. `held`: why the controller changes nothing there; null if it does. `problem`: why it cannot be reached.

    `holder`: the controller that has it now. `offers`: how many more of each profile it has room for, less the desktops
    on their way there; those of plain VFs are `VF`, of whole GPUs `passthrough`. `running`: how many desktops still run
    there; null unless its state is maintenance. `images`: what it has of each image of the fleet. `moves_live`: while
    it is drained, desktops with users, and those of fixed pools, move to other hosts as they are.
    """

    name: str
    address: str
    state: str
    held: str | None
    problem: str | None
    labels: Mapping[str, str]
    desktops: int
    machine_id: str | None
    host_key: str | None
    agent_version: str | None
    driver: str | None
    holder: str | None
    seen: str | None
    running: int | None
    offers: Mapping[str, int]
    generation: int
    images: Mapping[str, str] = EMPTY_MAPPING
    moves_live: bool = False

    @property
    def shown_state(self) -> str:
        """Its state, for people."""
        return f"{self.state} live" if self.moves_live else self.state


class FleetFitsHostResult(Value):
    """How many more desktops fit on a host. `why`: why none; null if some do. `image`: what it has of their image.

    `profiles`: how many the GPUs take if all have this profile; the numbers of several do not add up.
    """

    name: str
    free: int
    profiles: Mapping[str, int]
    image: str | None
    why: str | None


class FleetFitsResult(Value):
    """How many more desktops fit in the fleet. `pool`: null for a spec that is not stored.

    `free`: how many the hosts have room for. `fits`: whether `count` do, and the spec allows so many; null without a
    count. `maximum_left`: how many more the pool's spec allows, null if it is not stored. `unplaced`: how many
    desktops, of all pools, wait for a host: they go first.
    """

    pool: str | None
    profiles: tuple[str, ...]
    image: str
    count: int | None
    fits: bool | None
    free: int
    maximum_left: int | None
    unplaced: int
    hosts: tuple[FleetFitsHostResult, ...]


class FleetImageResult(Value):
    """A base image. `path`: of its file on the hosts. `pools`: those that use it.

    `file`: of the controller's machine, which is sent; `url`: where hosts fetch it; null both: nobody copies it.
    `hosts`: what each host has of it: missing, copying 40 %, ready, or failed with the reason.
    """

    name: str
    version: str
    path: str
    os: str
    sha256: str | None
    retired: bool
    pools: tuple[str, ...]
    generation: int
    file: str | None = None
    url: str | None = None
    bytes: int | None = None
    hosts: Mapping[str, str] = EMPTY_MAPPING


class FleetFileResult(Value):
    """A whole fleet, as apply-fleet reads it. Each entry has the keys of the fleet file's reference; no secrets."""

    version: int
    hosts: Mapping[str, Mapping[str, Any]]
    images: Mapping[str, Mapping[str, Any]]
    pools: Mapping[str, Mapping[str, Any]]
    people: Mapping[str, Mapping[str, Any]]
    quotas: Mapping[str, Mapping[str, Any]]
    entitlements: tuple[Mapping[str, Any], ...]


class AppliedPartResult(Value):
    """What was done with one thing of a fleet file. `fields`: those that differed; empty where it was created."""

    kind: str
    name: str
    change: Annotated[str, "created", "changed", "unchanged"]
    fields: tuple[str, ...] = ()


class AppliedFleetResult(Value):
    """What was done with a fleet file, in the order of the work, and what to know about it."""

    parts: tuple[AppliedPartResult, ...]
    warnings: tuple[str, ...] = ()


class FieldChangeResult(Value):
    """A field that a change changed, before and after; null: it had no value, or has none. Secrets are not shown."""

    field: str
    before: str | None
    after: str | None


class FleetEventResult(Value):
    """An entry of the fleet's journal. `actor`: who asked for it, or `controller`, which does some things by itself.

    `actor_kind`: local (the controller's socket), token, person or controller; null: an older version wrote it.
    `address`: where the request came from: of the browser or program, or `socket`.
    """

    id: int
    time: str
    kind: str
    text: str
    actor: str
    pool: str | None
    desktop: str | None
    host: str | None
    user: str | None
    actor_kind: str | None = None
    address: str | None = None
    changed: tuple[FieldChangeResult, ...] = ()


class GpuSliceResult(Value):
    """A vGPU on a GPU, or the whole GPU. `desktop`: null: it is the host's own, of no desktop.

    `framebuffer_mib`: null: the whole GPU, or not known. `placement`: its slice on a GPU with mixed sizes.
    """

    desktop: str | None
    pool: str | None
    phase: str | None
    user: str | None
    profile: str | None
    framebuffer_mib: int | None
    placement: int | None


class FleetGpuResult(Value):
    """A GPU of a host. `address`: its PCI address. `framebuffer_mib`: null: not known. `taken_mib`: by slices."""

    address: str
    model: str
    framebuffer_mib: int | None
    taken_mib: int
    slices: tuple[GpuSliceResult, ...]


class OverviewHostResult(Value):
    """A host with its GPUs. `silent`: it did not answer for a while. `problem`, `held`: as of `FleetHostResult`."""

    name: str
    state: str
    held: str | None
    problem: str | None
    silent: bool
    desktops: int
    gpus: tuple[FleetGpuResult, ...]


class OverviewPoolResult(Value):
    """A pool. `spare`: how many it keeps ready at this time, by its schedules. `counts`: desktops by phase."""

    name: str
    kind: str
    state: str
    reason: str | None
    image: str
    profiles: tuple[str, ...]
    maximum: int
    spare: int
    counts: Mapping[str, int]


class FleetOverviewResult(Value):
    """The fleet at a glance. `hosts`: a page of them by name; `next`: the page after it follows this name, null: none.

    `host_count`, `gpu_count`, `framebuffer_mib`, `taken_mib`, `counts` (desktops by phase) are of the whole fleet.
    """

    host_count: int
    gpu_count: int
    framebuffer_mib: int
    taken_mib: int
    counts: Mapping[str, int]
    pools: tuple[OverviewPoolResult, ...]
    hosts: tuple[OverviewHostResult, ...]
    next: str | None
