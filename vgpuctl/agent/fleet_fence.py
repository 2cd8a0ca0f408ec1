# SPDX-License-Identifier: Apache-2.0
"""Which controller the host obeys, and which of its desktops were deleted: a file in the agent's state directory.

    fence.announce(Fence(incarnation, epoch, holder), adopt=False, is_root=False)    # POST /v1/fleet
    fence.check(request.fence)      # on arrival, when an operation begins, and before its first step without an undo

A host belongs to one incarnation of a controller's database. In it each new holder of the host's lease has a higher
epoch; a change of a former holder is refused. Another incarnation takes the host over only where its admin asked for
it (`adopt`), and the former one is refused for good, unless root adopts it again.

The file is read when the agent starts. One that is unreadable, and a missing one on a host with desktops, counts as
lost: until a controller adopts the host, no change of a fleet is made.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock

from vgpuctl.agent.protocol import DesktopDeleted, Fenced, FenceLost, StateNotWritable
from vgpuctl.errors import Temporary
from vgpuctl.host.atomic_files import write_file
from vgpuctl.model.desktop import Fence, check_fence, check_text, is_desktop_id
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.result_reader import read_value
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import EMPTY_MAPPING, Value, replace

log = logging.getLogger("vgpuctl.agent")

FILE_NAME = "fleet.json"
MAX_FORMER = 100
"""So many former incarnations are remembered; then no other one can adopt the host."""
MAX_DELETED, KEPT_SECONDS = 10_000, 7 * 86400.0
"""So many deleted desktops are remembered, each for so long. None makes room before: then no desktop is deleted."""
MAX_FILE_BYTES = 4 << 20


class FenceState(Value):
    """What the file says. `former`: incarnations that are refused. `deleted`: when a desktop was deleted, by id."""

    incarnation: str
    epoch: int
    holder: str
    adopted: bool = False
    former: tuple[str, ...] = ()
    deleted: Mapping[str, float] = EMPTY_MAPPING


class FleetFence:
    """The fence of one host; threads share it. `has_desktops`: whether a VM's record on the host has a mark."""

    def __init__(self, directory: Path, now: Callable[[], float], has_desktops: Callable[[], bool]) -> None:
        self._path = directory / FILE_NAME
        self._now = now
        self._has_desktops = has_desktops
        self._lock = Lock()
        self._lost: str | None = None
        """Why the file does not count."""
        self._state = self._load()

    @property
    def state(self) -> FenceState | None:
        """Whom the host obeys; None: nobody yet, or it is lost."""
        return self._state

    @property
    def lost(self) -> str | None:
        """Why it is not known whom the host obeys; None: it is known, or nobody was announced."""
        return self._lost

    def announce(self, fence: Fence, *, adopt: bool, is_root: bool) -> None:
        """Take a holder.

        Raises:
            Fenced: the host obeys another one.
            FenceLost: whom it obeyed is not known any more, and `adopt` is False.
            StateNotWritable: it cannot be remembered; the host obeys whom it obeyed before.
        """
        with self._lock:
            state = self._announced(fence, adopt=adopt, is_root=is_root)
            if state != self._state:
                self._write(state)
            self._lost = None

    def check(self, fence: Fence) -> bool:
        """Return whether the holder's incarnation has adopted the host.

        Raises:
            Fenced, FenceLost: the host does not obey this holder.
        """
        with self._lock:
            self._refuse_lost()
            state = self._state
            if state is None or (state.incarnation == fence.incarnation and state.epoch < fence.epoch):
                raise _fenced("this holder has not announced itself", "announce it: POST /v1/fleet", state, "unknown")
            if state.incarnation != fence.incarnation:
                raise _other_incarnation(state, fence)
            _refuse_former_holder(state, fence)
            return state.adopted

    def refuse_deleted(self, desktop_id: str) -> None:
        """Refuse to make a desktop that was deleted here.

        Raises:
            DesktopDeleted: it was, in the last 7 days.
        """
        with self._lock:
            deleted = None if self._state is None else self._state.deleted.get(desktop_id)
        if deleted is not None and self._now() - deleted < KEPT_SECONDS:
            raise DesktopDeleted(
                f"desktop {desktop_id} was deleted on this host in the last 7 days, and is not made again",
                hint="give the new desktop an id of its own",
                desktop=desktop_id,
            )

    def note_deletion(self, desktop_id: str) -> None:
        """Remember that a desktop is deleted, before it is.

        Raises:
            Temporary: too many are remembered, or the file cannot be written.
        """
        with self._lock:
            if self._state is None:
                return
            now = self._now()
            kept = {one: when for one, when in self._state.deleted.items() if now - when < KEPT_SECONDS}
            if desktop_id not in kept and len(kept) >= MAX_DELETED:
                raise Temporary(
                    f"{MAX_DELETED} desktops were deleted here in the last 7 days, and no more can be remembered",
                    hint="delete it later; as root, on the host: vgpuctl --override-controller delete-vm NAME",
                    limit=MAX_DELETED,
                )
            self._write(replace(self._state, deleted={**kept, desktop_id: now}))

    def _announced(self, fence: Fence, *, adopt: bool, is_root: bool) -> FenceState:
        """Return the state with this holder."""
        if self._state is None and self._lost is None and not adopt and self._has_desktops():
            self._lost = f"{self._path} is missing, and VMs of this host are desktops of a controller"
        if self._state is None:
            if not adopt:
                self._refuse_lost()
            return FenceState(fence.incarnation, fence.epoch, fence.holder, adopted=adopt)
        state = self._state
        if state.incarnation == fence.incarnation:
            _refuse_former_holder(state, fence)
            return replace(state, epoch=fence.epoch, holder=fence.holder)
        if not adopt or (fence.incarnation in state.former and not is_root):
            raise _other_incarnation(state, fence)
        former = (*(one for one in state.former if one != fence.incarnation), state.incarnation)
        if len(former) > MAX_FORMER:
            raise _fenced(
                f"{MAX_FORMER} incarnations had this host before, and no more can be remembered",
                f"as root, on the host: systemctl stop vgpuctl-agent; mv {self._path} {self._path}.old; "
                "systemctl start vgpuctl-agent; then adopt it again",
                state,
                "former",
            )
        return FenceState(fence.incarnation, fence.epoch, fence.holder, True, former, state.deleted)

    def _refuse_lost(self) -> None:
        if self._lost is not None:
            raise FenceLost(
                f"this host no longer knows which controller it obeys: {self._lost}",
                hint="make sure that no other controller has this host; then adopt it: POST /v1/fleet with adopt",
                path=str(self._path),
            )

    def _load(self) -> FenceState | None:
        try:
            content = json.loads(read_regular_file(str(self._path), MAX_FILE_BYTES))
            state: FenceState = read_value(FenceState, content, FILE_NAME)
            _check_state(state)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self._lost = f"{self._path} cannot be read: {error}"
            log.error("%s; no change of a fleet is made until a controller adopts this host", self._lost)
            return None
        return state

    def _write(self, state: FenceState) -> None:
        text = json.dumps(to_json_value(state), ensure_ascii=False)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._path, text.encode())
        except OSError as error:
            raise StateNotWritable(
                f"the host agent cannot remember it: {error.strerror}: {error.filename or self._path}",
                hint=f"df -h {self._path.parent}; findmnt -T {self._path.parent}",
                path=str(self._path),
                errno=error.errno,
            ) from error
        self._state = state


def _check_state(state: FenceState) -> None:
    """Raise ValueError for what no agent has written."""
    check_fence(Fence(state.incarnation, state.epoch, state.holder))
    if len(state.former) > MAX_FORMER or len(state.deleted) > MAX_DELETED:
        raise ValueError("it has too many entries")
    for one in state.former:
        check_text("former", one)
    for desktop_id, when in state.deleted.items():
        if not is_desktop_id(desktop_id):
            raise ValueError(f"deleted: {desktop_id[:60]!a} is no id of a desktop")
        if not math.isfinite(when):
            raise ValueError(f"deleted: {desktop_id} has no time")


def _refuse_former_holder(state: FenceState, fence: Fence) -> None:
    if fence.epoch < state.epoch:
        text = f"the lease of this host has gone on: its epoch is {state.epoch}, and {fence.holder} has {fence.epoch}"
        raise _fenced(text, "do nothing more on this host", state, "epoch")
    if fence.epoch == state.epoch and fence.holder != state.holder:
        text = f"{state.holder} has the lease of this host with the epoch {state.epoch}, and {fence.holder} has not"
        raise _fenced(text, "do nothing more on this host", state, "holder")


def _other_incarnation(state: FenceState, fence: Fence) -> Fenced:
    if fence.incarnation in state.former:
        return _fenced(
            f"this host obeyed the controller {fence.incarnation} before, and obeys {state.incarnation} for good",
            "only root of the host can adopt it for the former controller again",
            state,
            "former",
        )
    return _fenced(
        f"this host obeys the controller {state.incarnation}, not {fence.incarnation}",
        "only an admin decides that; then adopt it: POST /v1/fleet with adopt",
        state,
        "incarnation",
    )


def _fenced(text: str, hint: str, state: FenceState | None, reason: str) -> Fenced:
    shown: dict[str, object] = {"incarnation": None, "epoch": None, "holder": None}
    if state is not None:
        shown = {"incarnation": state.incarnation, "epoch": state.epoch, "holder": state.holder}
    return Fenced(text, hint=hint, reason=reason, **shown)
