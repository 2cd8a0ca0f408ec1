# SPDX-License-Identifier: Apache-2.0
"""Whether the servers that know the users answer, for `vgpuctl controller doctor`."""

from __future__ import annotations

from collections.abc import Callable

from vgpuctl.controller.sign_in.settings import SignInSettings
from vgpuctl.controller.sign_in.ways import open_ways
from vgpuctl.errors import VgpuctlError
from vgpuctl.value import Value, replace


class SignInProblem(Value):
    """What is wrong with a section of sign-in.yaml, and a command or an action that helps; None: none is known."""

    section: str
    text: str
    fix: str | None


def check_oidc(settings: SignInSettings) -> tuple[SignInProblem, ...]:
    """Return what keeps users from signing in at the issuer: its document and its keys are fetched."""
    if settings.oidc is None:
        return ()
    return _problems("oidc", lambda: _ask_issuer(replace(settings, ldap=None)))


def check_ldap(settings: SignInSettings) -> tuple[SignInProblem, ...]:
    """Return what keeps users from signing in at the LDAP server: the searching account binds, the bases are read."""
    if settings.ldap is None:
        return ()
    return _problems("ldap", lambda: _ask_directory(replace(settings, oidc=None)))


def _ask_issuer(settings: SignInSettings) -> None:
    oidc = open_ways(settings).oidc
    assert oidc is not None
    oidc.check()


def _ask_directory(settings: SignInSettings) -> None:
    directory = open_ways(settings).ldap
    assert directory is not None
    directory.check()


def _problems(section: str, ask: Callable[[], None]) -> tuple[SignInProblem, ...]:
    try:
        ask()
    except VgpuctlError as error:
        return (SignInProblem(section, error.message, error.hint),)
    return ()
