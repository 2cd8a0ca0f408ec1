# SPDX-License-Identifier: Apache-2.0
"""The ways to sign in that sign-in.yaml configures. Their libraries are loaded here, and only those that are needed.

ways = open_ways(read_settings("/etc/vgpuctl-controller/sign-in.yaml"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.controller.sign_in.settings import SignInSettings
from vgpuctl.errors import missing_library_error

if TYPE_CHECKING:
    from vgpuctl.controller.sign_in.ldap import Ldap
    from vgpuctl.controller.sign_in.oidc import Oidc


class SignInWays:
    """What is configured; None for what is not."""

    def __init__(self, oidc: Oidc | None, ldap: Ldap | None) -> None:
        self.oidc = oidc
        self.ldap = ldap


def open_ways(settings: SignInSettings) -> SignInWays:
    """Return the ways to sign in; no server is asked yet.

    Raises:
        HostCannot: a library is missing; the hint installs it. SignInUnavailable: ca_file has no certificates.
    """
    try:
        oidc = ldap = None
        if settings.oidc is not None:
            from vgpuctl.controller.sign_in.oidc import Oidc

            oidc = Oidc(settings.oidc)
        if settings.ldap is not None:
            from vgpuctl.controller.sign_in.ldap import Ldap

            ldap = Ldap(settings.ldap)
    except ImportError as error:
        raise missing_library_error(error) or error from error
    return SignInWays(oidc, ldap)
