# SPDX-License-Identifier: Apache-2.0
"""Who signed in, and the two ways in which signing in fails. What a server says about a person is checked here."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from vgpuctl.controller.planning import pool_rules
from vgpuctl.errors import Busy, InvalidInput, NotAllowed, Refused, Temporary, VgpuctlError
from vgpuctl.model.names import is_visible
from vgpuctl.value import Value

log = logging.getLogger("vgpuctl.controller.sign_in")

MAX_GROUPS, MAX_GROUP_LENGTH = 2000, 200
MAX_SHOWN_LENGTH = 200
_MAX_SERVER_TEXT = 200


WRONG = "password"
"""The problem of a name or a password that is wrong."""


class SignInRefused(Refused):
    """Nobody is let in: the password, the token or the answer of the browser is wrong; `facts.problem` says which."""

    code = "sign-in-refused"


class SignInUnavailable(Temporary):
    """The server that knows the users does not answer, or not as it should."""

    code = "sign-in-unavailable"


class SignedIn(Value):
    """A person. `name`: as in entitlements; `shown`: the name for people to read; `warnings`: what was left out."""

    name: str
    groups: tuple[str, ...]
    shown: str
    warnings: tuple[str, ...] = ()


def person_of(
    name: object, groups: Sequence[object], shown: object, source: str, warnings: tuple[str, ...] = ()
) -> SignedIn:
    """Return a person as a server describes one; `source` names what the name came from, for messages.

    `warnings`: of groups that the server did not name; what is left out here comes after them. All are logged.

    Raises:
        SignInRefused: the name is none that the fleet can use.
    """
    try:
        checked = pool_rules.user(name)
    except ValueError as error:
        raise SignInRefused(
            f"{source}: {error}",
            hint="set another name_claim or name_attribute in sign-in.yaml, or change the name there",
            problem="name",
        ) from None
    kept, more = _kept_groups(groups)
    for warning in (*warnings, *more):
        log.warning("%s: %s", checked, warning)
    is_shown = isinstance(shown, str) and _is_plain(shown, MAX_SHOWN_LENGTH)
    return SignedIn(checked, kept, str(shown) if is_shown else checked, (*warnings, *more))


def for_strangers(error: VgpuctlError) -> VgpuctlError:
    """Return what somebody who has not signed in may know of an error; the log has the rest."""
    if isinstance(error, SignInRefused | NotAllowed | InvalidInput | Busy) or error.code == "too-many-tries":
        return error
    log.warning("signing in fails: %s%s", error.message, f" ({error.hint})" if error.hint else "")
    return SignInUnavailable("signing in does not work just now", hint="an admin finds why in the controller's log")


def server_text(text: object) -> str:
    """Return what a server says, for a message: short, and without characters that a terminal obeys."""
    shown = ascii(str(text)[:_MAX_SERVER_TEXT])[1:-1]
    return f"{shown[:_MAX_SERVER_TEXT]}…" if len(str(text)) > _MAX_SERVER_TEXT else shown[:_MAX_SERVER_TEXT]


def _kept_groups(groups: Sequence[object]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    usable = [group for group in groups if isinstance(group, str) and _is_plain(group, MAX_GROUP_LENGTH)]
    kept = tuple(dict.fromkeys(usable))
    warnings = []
    if len(usable) < len(groups):
        unusable = len(groups) - len(usable)
        warnings.append(
            f"{unusable} of {len(groups)} groups are left out: their names are not texts of 1 to "
            f"{MAX_GROUP_LENGTH} visible characters"
        )
    if len(kept) > MAX_GROUPS:
        warnings.append(f"of {len(kept)} groups {len(kept) - MAX_GROUPS} are left out")
    return kept[:MAX_GROUPS], tuple(warnings)


def _is_plain(text: str, most: int) -> bool:
    return bool(text.strip()) and len(text) <= most and all(map(is_visible, text))
