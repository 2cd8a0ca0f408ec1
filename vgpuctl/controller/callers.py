# SPDX-License-Identifier: Apache-2.0
"""Who asks: the socket's owner, a program with a token, or a person whose browser has a session.

A browser sends its cookie with requests that another site made it send. So a change with a cookie must also say that
the page was ours (Sec-Fetch-Site, which no page can set), and carry a text that only our pages can read.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from vgpuctl.controller.digests import digest_of, header_token, is_header_token
from vgpuctl.controller.model import CallerKind, FleetCaller, Role
from vgpuctl.controller.oidc_sign_in import OidcSignIn
from vgpuctl.controller.sessions import BegunSession, PasswordSignIn
from vgpuctl.controller.sign_in.signed_in import for_strangers
from vgpuctl.controller.sign_in_threads import SignInThreads
from vgpuctl.errors import InvalidInput, NotAllowed, VgpuctlError
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.sign_in.ways import SignInWays

HEADER = "x-vgpuctl-token"
SAFE_COOKIE = "__Host-vgpuctl"
"""A browser sends it back only over TLS, and to this host alone."""
PLAIN_COOKIE = "vgpuctl"
"""Without TLS, which is served on loopback addresses alone."""


class NotSignedIn(NotAllowed):
    """A request has no token, or one that opens nothing (HTTP 401)."""

    code = "not-signed-in"


class Callers:
    """Says who asks. `ways`: to sign in besides passwords of the controller's own; `oidc`: None without an issuer."""

    def __init__(self, store: Store, ways: SignInWays | None = None) -> None:
        self._store = store
        self._owner = getpass.getuser()
        self.threads = SignInThreads()
        self.passwords = PasswordSignIn(store, None if ways is None else ways.ldap)
        self.oidc = None if ways is None or ways.oidc is None else OidcSignIn(store, ways.oidc, self.passwords)

    @property
    def issuer(self) -> str | None:
        """The name of the issuer where people can sign in; None: there is none."""
        return None if self.oidc is None else self.oidc.name

    def find(
        self, request: HTTPConnection, *, changes: bool, token: str | None = None, touches: bool = True
    ) -> FleetCaller:
        """Return who asks. `changes`: the request is to change something. `token`: of a form, instead of the header.

        `touches`: a person asks, not an open page by itself.

        Raises:
            NotSignedIn: nobody that is known.
            NotAllowed: another site's page may have sent it; or its token's person signed in too long ago.
        """
        if request.scope.get("vgpuctl_socket"):
            return FleetCaller(self._owner, Role.ADMIN, CallerKind.LOCAL, address=address_of(request))
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        if kind:
            digest = digest_of(secret.strip()) if kind.lower() == "bearer" else ""
            known = self._store.tokens.find(digest) if digest else None
            if known is not None:
                rights = {} if known.right is None else dict.fromkeys(known.pools, known.right)
                return FleetCaller(
                    known.name, known.role, CallerKind.TOKEN, rights, address_of(request), session=digest
                )
            person = self._store.personal_tokens.caller(digest) if digest else None
        else:
            secret = session_secret(request) or ""
            person = self.passwords.caller(secret, touches=touches) if secret else None
        if person is None:
            raise NotSignedIn(
                "this request has no valid token", hint="VGPUCTL_TOKEN_FILE=FILE, or Authorization: Bearer SECRET"
            )
        if changes and person.token is None:
            refuse_other_sites(request)
            if not is_header_token(secret, request.headers.get(HEADER, "") if token is None else token):
                raise NotAllowed(f"a change with a cookie needs the header {HEADER}", rule="header-token")
        if person.role not in (None, Role.VIEWER) and self._store.restored.state().begun_at is not None:
            person = replace(person, role=Role.VIEWER)  # a restore may have brought back a role that was revoked since
        return replace(person, address=address_of(request), session=digest_of(secret))

    def token(self, request: Request) -> str:
        """Return what the forms of a page carry; of a request without a cookie nothing."""
        secret = session_secret(request)
        return "" if secret is None else header_token(secret)

    def sign_in(self, request: Request, given: Mapping[str, object]) -> BegunSession:
        """Begin a session with a name and a password.

        Raises:
            InvalidInput: they are not in the request. VgpuctlError: as `PasswordSignIn.sign_in`.
        """
        refuse_other_sites(request, needed=False)
        name, password = given.get("user"), given.get("password")
        if given.keys() != {"user", "password"} or not isinstance(name, str) or not isinstance(password, str):
            raise InvalidInput("sign-in: it takes user and password, two texts")
        try:
            return self.passwords.sign_in(name[:255], password, address_of(request))
        except VgpuctlError as error:
            raise for_strangers(error) from error

    def change_password(self, request: Request, given: Mapping[str, object], token: str | None = None) -> None:
        """Change the password of who asks. `token`: as `find`.

        Raises:
            InvalidInput: `old` and `new` are not in the request. VgpuctlError: as `PasswordSignIn.change_password`.
        """
        caller, old, new = self.find(request, changes=True, token=token), given.get("old"), given.get("new")
        if caller.kind is not CallerKind.PERSON or caller.token is not None:
            raise NotAllowed(
                "a token changes no password", hint="sign in on the controller's page: /my/password", rule="token"
            )
        if given.keys() != {"old", "new"} or not isinstance(old, str) or not isinstance(new, str):
            raise InvalidInput("password: it takes old and new, two texts")
        with self._store.changes.made_by(caller):
            self.passwords.change_password(caller.name, old, new, address_of(request), caller.session or "")

    def sign_out(self, request: Request) -> None:
        """End the session of a request."""
        self.passwords.sign_out(session_secret(request) or "")


def session_secret(request: HTTPConnection, more: str = "") -> str | None:
    """Return the secret in a request's cookie; None: it has none. `more`: the end of another cookie's name."""
    return request.cookies.get((SAFE_COOKIE if request.url.scheme in ("https", "wss") else PLAIN_COOKIE) + more)


def set_cookie(request: Request, response: Response, secret: str | None, more: str = "") -> None:
    """Have a browser keep a session's secret, or forget it. `more`: the end of another cookie's name."""
    is_safe = request.url.scheme == "https"
    name = (SAFE_COOKIE if is_safe else PLAIN_COOKIE) + more
    if secret is None:
        response.delete_cookie(name, path="/", secure=is_safe, httponly=True, samesite="lax")
    else:
        response.set_cookie(name, secret, path="/", secure=is_safe, httponly=True, samesite="lax")


def refuse_other_sites(request: HTTPConnection, *, needed: bool = True) -> None:
    """Refuse a request that another site's page made a browser send. `needed`: it must say so itself.

    Raises:
        NotAllowed: it did, or does not say so.
    """
    site = request.headers.get("sec-fetch-site", "" if needed else "none")
    if site != "same-origin" and (needed or site != "none"):
        raise NotAllowed("another site's page sent this request", rule="sec-fetch-site")


def address_of(request: HTTPConnection) -> str:
    """Return where a request comes from."""
    return request.client.host if request.client is not None else "socket"
