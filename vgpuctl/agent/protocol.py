# SPDX-License-Identifier: Apache-2.0
"""What the agent and its client agree on: where the socket is, and what a request has besides the call's arguments.

A call's arguments are the JSON object in the body of `POST /v1/CALL`, under the names that the library gives them. What
belongs to the request and not to the call is in the object `request` beside them; no call has an argument of that name.
"""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.errors import Busy, InvalidInput, Refused, Temporary
from vgpuctl.library.call_table import CALLS, LibraryCall
from vgpuctl.model.desktop import DesktopMark, Fence, FleetRequest, check_fleet
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.result_reader import read_value
from vgpuctl.value import EMPTY_MAPPING, Value

API_VERSION = "v1"
MAX_BODY_BYTES = 1 << 20
REQUEST_KEY = "request"
EVENT_STREAM = "text/event-stream"
_INSTALLS = "its service may not write where that installs files"
_LOGS_IN = "it logs in to no other host, for which it would need keys of root's"
HOST_ONLY_CALLS: Mapping[str, str] = {
    "install-host": _INSTALLS,
    "migrate-vm": _LOGS_IN,
    "end-migration": _LOGS_IN,
    "uninstall-host": _INSTALLS,
}
"""Calls that no agent makes, and why. One that installs would also stop the agent that makes it."""
API_CALLS: Mapping[str, LibraryCall] = {name: call for name, call in CALLS.items() if name not in HOST_ONLY_CALLS}
RESULT_EVENT = "result"
"""The last event of an operation's stream; its data is the document that `--json` would print."""


class KeyReused(Refused):
    """The same idempotency key came with another request (HTTP 409)."""

    code = "key-reused"


class TooMany(Busy):
    """So many operations wait, or so many reads run, that the agent takes no other one (HTTP 429)."""

    code = "too-many"


class Stopping(Busy):
    """The agent stops, and begins nothing new (HTTP 503)."""

    code = "stopping"


def refuse_host_only(call: str) -> None:
    """Refuse a call that no agent makes.

    Raises:
        Refused: it is one of those.
    """
    if call in HOST_ONLY_CALLS:
        raise Refused(
            f"the host agent does not make the call {call}: {HOST_ONLY_CALLS[call]}",
            hint=f"as root, on the host itself: sudo vgpuctl {call}",
            call=call,
        )


class StateNotWritable(Temporary):
    """The agent cannot store an operation, so it does not begin it (HTTP 503)."""

    code = "state-not-writable"


class Fenced(Refused):
    """The host obeys another controller, or another holder of its lease (HTTP 409); `facts` says whom, and `reason`.

    `reason`: `epoch`, `holder`: the lease has gone on; `incarnation`: of another database; `former`: of one that the
    host obeyed before; `unknown`: nobody announced this holder.
    """

    code = "fenced"


class FenceLost(Refused):
    """The host no longer knows which controller it obeys (HTTP 409)."""

    code = "fence-lost"


class FenceNeeded(Refused):
    """An account with the rights of a fleet sends a fence with each change (HTTP 403)."""

    code = "fence-needed"


class DesktopDeleted(Refused):
    """The desktop was deleted on this host, and is not made again (HTTP 409)."""

    code = "tombstone"


class RequestOptions(Value):
    """What a request has besides the arguments of its call.

    `wait_seconds`: as the option --wait. `ask`: refuse what needs a confirmation, with the question in the error,
    unless `confirmed` has it: the question and its lines, joined by newlines. `files`: the texts of files that the
    arguments name, by path; the agent reads no file for a caller. `command_line`: what the caller typed, for the audit
    journal. `fresh`: a read observes the host again; without it, a snapshot of a moment ago may serve.
    `if_generation`: the generation that the record of the call's VM must have; None: any.
    `fleet`: a controller asks, and says which. `override_controller`: as root, change desktops without it.
    `address`, `on_behalf_of`: where the request comes from and for whom, for the audit journal; nothing proves them.
    """

    wait_seconds: float | None = None
    ask: bool = False
    confirmed: tuple[str, ...] = ()
    files: Mapping[str, str] = EMPTY_MAPPING
    command_line: tuple[str, ...] = ()
    fresh: bool = False
    address: str | None = None
    on_behalf_of: str | None = None
    if_generation: int | None = None
    fleet: FleetRequest | None = None
    override_controller: bool = False


def read_options(given: object) -> RequestOptions:
    """Return the options of a request; without any, those by default.

    Raises:
        InvalidInput: a name is unknown, or a value has another type.
    """
    if given is None:
        return RequestOptions()
    if not isinstance(given, dict):
        raise InvalidInput(f"{REQUEST_KEY}: it is not an object")
    unknown = sorted(given.keys() - {*RequestOptions._fields}) or _unknown_in_fleet(given.get("fleet"))
    if unknown:
        names = ", ".join(RequestOptions._fields)
        raise InvalidInput(f"{REQUEST_KEY}: {', '.join(unknown)}: not known; it takes {names}", fields=unknown)
    try:
        defaults = to_json_value(RequestOptions())
        options: RequestOptions = read_value(RequestOptions, {**defaults, **given}, REQUEST_KEY)
        if options.fleet is not None:
            check_fleet(options.fleet)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    return options


def _unknown_in_fleet(given: object) -> list[str]:
    """Return the names in a fleet request that nothing has: a mark that is written wrong must not become none."""
    if not isinstance(given, dict):
        return []
    parts = ((given, FleetRequest), (given.get("fence"), Fence), (given.get("mark"), DesktopMark))
    return sorted({name for part, kind in parts if isinstance(part, dict) for name in part.keys() - {*kind._fields}})


def confirmation_key(question: str, details: tuple[str, ...]) -> str:
    """Return a question and its lines as `confirmed` has them."""
    return "\n".join((question, *details))
