# SPDX-License-Identifier: Apache-2.0
"""What the helper in a guest says of it: lines of JSON, from `templates/guest/vgpuctl_guest.py` or whatever runs there.

A guest may say whatever it likes. So a line that is not exactly a report or an answer is refused as a whole, names lose
what is not visible, and which VM it is about follows from the channel, never from the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.names import is_visible
from vgpuctl.value import Value

CHANNEL = "org.vgpuctl.guest.0"
"""The name of the virtio port; also in templates/vm.xml.j2."""
MAX_LINE_BYTES = 4096
MAX_USERS = 32
MAX_NAME_CHARACTERS = 64
_MAX_ERROR_CHARACTERS = 500
_VERSION = re.compile(r"[0-9][0-9.]{0,19}", re.ASCII)
_BRANCH = re.compile(r"[A-Za-z0-9_.-]{1,20}", re.ASCII)
_STATES = ("active", "disconnected")


class GuestUser(Value):
    """A user who is logged on in a guest. `idle_seconds`: since the last input; None: not known.

    `disconnected`: the session runs, and nobody sees its screen. A guest with Linux does not tell that.
    """

    user: str
    state: Literal["active", "disconnected"]
    idle_seconds: int | None


class GuestReport(Value):
    """The last report of a guest's helper. `seen`: when it came, in seconds since 1970, by the host's clock.

    `helper`: the helper's version. `users`: None where the guest does not know who is logged on. `driver`: the version
    of NVIDIA's driver in the guest, None without one. `host_driver`, `host_branch`: of the host's vGPU driver, as the
    guest sees it in the vGPU's PCI configuration space. `mps`: whether the daemon of MPS runs.
    """

    seen: float
    helper: str
    users: tuple[GuestUser, ...] | None
    driver: str | None
    host_driver: str | None
    host_branch: str | None
    mps: bool


class GuestAnswer(Value):
    """A helper's answer to a request. `error`: why it was not carried out; None: it was."""

    id: int
    error: str | None


def parse_line(line: bytes, now: float) -> GuestReport | GuestAnswer:
    """Return what a line of a helper says.

    Raises:
        ValueError: it is neither a report nor an answer.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ValueError("it is too long")
    message = parse_json(line.decode("ascii"))
    if not isinstance(message, dict):
        raise ValueError("it is no object")
    if message.get("type") == "report":
        return parse_report(message, now)
    if message.get("type") != "answer":
        raise ValueError("it is of no known type")
    number, ok, error = message.get("id"), message.get("ok"), message.get("error")
    if type(number) is not int or type(ok) is not bool or not (ok or isinstance(error, str)):
        raise ValueError("it is no answer")
    return GuestAnswer(number, None if ok else _visible(str(error))[:_MAX_ERROR_CHARACTERS])


def parse_report(message: Mapping[str, Any], seen: float) -> GuestReport:
    """Return a report, from its JSON.

    Raises:
        ValueError: it is none.
    """
    helper, users, mps = _match(_VERSION, message.get("helper")), message.get("users"), message.get("mps")
    if helper is None or type(mps) is not bool:
        raise ValueError("helper or mps is missing")
    if users is not None and (not isinstance(users, list) or len(users) > MAX_USERS):
        raise ValueError("users are no list, or too many")
    return GuestReport(
        seen=seen,
        helper=helper,
        users=None if users is None else tuple(sorted({u.user: u for u in map(_user, users)}.values(), key=_name)),
        driver=_match(_VERSION, message.get("driver")),
        host_driver=_match(_VERSION, message.get("host_driver")),
        host_branch=_match(_BRANCH, message.get("host_branch")),
        mps=mps,
    )


def _visible(text: str) -> str:
    return "".join(filter(is_visible, text))


def _name(user: GuestUser) -> str:
    return user.user


def _user(value: object) -> GuestUser:
    if not isinstance(value, dict):
        raise ValueError("a user is no object")
    name, state, idle = value.get("user"), value.get("state"), value.get("idle_seconds")
    visible = _visible(name).strip() if isinstance(name, str) else ""
    if not visible or len(visible) > MAX_NAME_CHARACTERS or state not in _STATES:
        raise ValueError("a user has no name or state")
    if idle is not None and (type(idle) is not int or not 0 <= idle < 1 << 31):
        raise ValueError("a user's idle_seconds is no time")
    return GuestUser(visible, state, idle)


def _match(pattern: re.Pattern[str], value: object) -> str | None:
    """Return a text that matches; None for none.

    Raises:
        ValueError: it does not match.
    """
    if value is None:
        return None
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError("a version is none")
    return value
