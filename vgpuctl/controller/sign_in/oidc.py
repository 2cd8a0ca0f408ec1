# SPDX-License-Identifier: Apache-2.0
"""Signs users in at an OpenID Connect issuer: authorization code flow with PKCE, state and nonce.

    oidc = Oidc(settings)
    url, pending = oidc.begin("https://fleet.example.org/sign-in/oidc")    # keep `pending` for this browser alone
    person = oidc.finish(pending, query)                                   # the query with which the browser comes back

The caller keeps a `Pending` on its own side, ties it to one browser, and uses it once.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.client import OAuth2Client

from vgpuctl.controller.sign_in.id_token import KEEP_SECONDS, Expected, KeyRing, verify_id_token
from vgpuctl.controller.sign_in.secret_file import read_secret
from vgpuctl.controller.sign_in.settings import OidcSettings, web_address
from vgpuctl.controller.sign_in.signed_in import SignedIn, SignInRefused, SignInUnavailable, person_of, server_text
from vgpuctl.controller.sign_in.web_fetch import WebClient, parse_object
from vgpuctl.errors import Refused
from vgpuctl.value import Value

PENDING_SECONDS = 600.0
"""A user has this long to sign in at the issuer."""
ANSWER_SECONDS = 5.0
FAILED_SECONDS = 5.0
"""An issuer that failed is not asked again for this long: else each user would wait for it, one after the other."""
MAX_CODE = 8192
DISCOVERY_PATH = "/.well-known/openid-configuration"
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")
_FORM = "application/x-www-form-urlencoded"


class Pending(Value):
    """A sign-in that began. `state` comes back with the browser; nobody but the controller has the rest."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    begun_at: float

    def __repr__(self) -> str:
        return f"Pending(redirect_uri={self.redirect_uri!r}, begun_at={self.begun_at!r})"


class Issuer(Value):
    """What an issuer says about itself: OpenID Connect Discovery 1.0. `userinfo`: None where it has none."""

    authorization: str
    token: str
    keys: str
    userinfo: str | None
    client_auth: str
    names_itself: bool


class Oidc:
    """One issuer. Threads may share it. `clock` and `monotonic` replace the machine's in tests."""

    def __init__(
        self,
        settings: OidcSettings,
        *,
        seconds: float = ANSWER_SECONDS,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock, self._monotonic = clock, monotonic
        self._client = WebClient(settings.ca_file, seconds)
        self._keys = KeyRing(self._client, monotonic)
        self._lock = threading.Lock()
        self._issuer: tuple[float, Issuer] | None = None
        self._failed: tuple[float, SignInUnavailable] | None = None

    @property
    def name(self) -> str:
        """The issuer's host."""
        return urlsplit(self._settings.issuer).hostname or self._settings.issuer

    @property
    def address(self) -> str:
        """Where browsers reach the controller."""
        return self._settings.address

    def begin(self, redirect_uri: str) -> tuple[str, Pending]:
        """Return the address at the issuer to which the browser goes, and what `finish` needs.

        Raises:
            SignInUnavailable: the issuer does not answer, or not as it should.
        """
        pending = Pending(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), redirect_uri, self._clock()
        )
        client = OAuth2Client(
            None,
            self._settings.client_id,
            redirect_uri=redirect_uri,
            scope=" ".join(self._settings.scopes),
            code_challenge_method="S256",
        )
        url, _ = client.create_authorization_url(
            self.discover().authorization, state=pending.state, code_verifier=pending.verifier, nonce=pending.nonce
        )
        return str(url), pending

    def finish(self, pending: Pending, query: Mapping[str, str]) -> SignedIn:
        """Return who signed in. `query`: of the address to which the issuer sent the browser back.

        Raises:
            SignInRefused: nobody did; `problem` says what is wrong. SignInUnavailable: the issuer does not answer.
            Refused, FileFailed: the file with the client's secret cannot be used.
        """
        self._check_state(pending, query)
        issuer = self.discover()
        code = self._read_code(issuer, query)
        tokens = self._fetch_tokens(issuer, pending, code)
        access_token = tokens.get("access_token")
        expected = Expected(self._settings.issuer, self._settings.client_id, pending.nonce, self._clock())
        claims = verify_id_token(
            tokens.get("id_token"), access_token, lambda kid: self._keys.find(kid, issuer.keys), expected
        )
        return self._person(self._with_userinfo(issuer, claims, access_token))

    def discover(self) -> Issuer:
        """Return what the issuer says about itself, at most an hour old.

        Raises:
            SignInUnavailable: it does not answer, or says something else than is configured.
        """
        with self._lock:
            now = self._monotonic()
            if self._issuer is not None and now - self._issuer[0] < KEEP_SECONDS:
                return self._issuer[1]
            if self._failed is not None and now - self._failed[0] < FAILED_SECONDS:
                raise self._failed[1].with_traceback(None)  # who waited for the lock does not wait once more
            try:
                address = self._settings.issuer.removesuffix("/") + DISCOVERY_PATH
                document = self._client.fetch_object(address, "the issuer's document")
                issuer = _issuer_of(document, self._settings)
            except SignInUnavailable as error:
                self._failed = self._monotonic(), error
                raise
            self._issuer = now, issuer
            return issuer

    def check(self) -> None:
        """See that users can be sent to the issuer and its tokens checked, for `doctor`.

        Raises:
            SignInUnavailable: they cannot. Refused, FileFailed: the file with the client's secret cannot be used.
        """
        if self._settings.client_secret_file is not None:
            read_secret(self._settings.client_secret_file)
        if not self._keys.fetch(self.discover().keys):
            raise SignInUnavailable(f"the issuer {self._settings.issuer} has no keys with which tokens can be checked")

    def _check_state(self, pending: Pending, query: Mapping[str, str]) -> None:
        age = self._clock() - pending.begun_at
        if not -PENDING_SECONDS <= age <= PENDING_SECONDS:
            text = f"the sign-in began {age:.0f} s ago, and has to end within {PENDING_SECONDS:.0f} s: begin again"
            raise SignInRefused(text, problem="late")
        if not hmac.compare_digest(query.get("state", "").encode(errors="replace"), pending.state.encode()):
            raise SignInRefused("this answer belongs to another sign-in: begin again", problem="state")

    def _read_code(self, issuer: Issuer, query: Mapping[str, str]) -> str:
        """Return the code in an answer whose state was checked; RFC 9207 has an issuer name itself."""
        named = query.get("iss")
        if named != self._settings.issuer and (named is not None or issuer.names_itself):
            text = f"the answer is from {server_text(named)}, and {self._settings.issuer} was asked"
            raise SignInRefused(text, problem="issuer")
        if "error" in query:
            raise SignInRefused(f"the issuer lets nobody in: {_error_code(query['error'])}", problem="denied")
        code = query.get("code", "")
        if not code or len(code) > MAX_CODE or not code.isascii() or not code.isprintable():
            raise SignInRefused("the issuer's answer has no code", problem="code")
        return code

    def _fetch_tokens(self, issuer: Issuer, pending: Pending, code: str) -> dict[str, object]:
        secret_file = self._settings.client_secret_file
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
        }
        secret = None if secret_file is None else read_secret(secret_file)
        if not (secret or "").isascii() or not self._settings.client_id.isascii():
            raise Refused("the client's id or secret is not ASCII, and an issuer's always is", path=secret_file)
        auth = ClientAuth(
            self._settings.client_id,
            secret,
            "none" if secret_file is None else issuer.client_auth,
        )
        headers = {"Accept": "application/json", "Content-Type": _FORM}
        url, headers, body = auth.prepare("POST", issuer.token, headers, urlencode(form))
        answer = self._client.fetch(url, headers, body)
        if answer.status >= 500:
            raise SignInUnavailable(f"the issuer gives no token: its answer has status {answer.status}")
        tokens = parse_object(answer.body, "the issuer's answer with the token")
        if answer.status != 200 or "error" in tokens:
            error = _error_code(tokens.get("error"))
            hint = None
            if error in ("invalid_client", "unauthorized_client"):
                hint = "compare client_id and client_secret_file in sign-in.yaml with the issuer's"
            raise SignInRefused(
                f"the issuer gives no token: {error} (status {answer.status})", hint=hint, problem=error
            )
        return tokens

    def _with_userinfo(self, issuer: Issuer, claims: Mapping[str, Any], access_token: object) -> Mapping[str, Any]:
        """Return the claims, with those that an issuer says only when it is asked again; the token's own win."""
        wanted = (self._settings.name_claim, self._settings.groups_claim)
        if issuer.userinfo is None or all(name in claims for name in wanted) or not isinstance(access_token, str):
            return claims
        if not access_token.isascii() or not access_token.isprintable():
            return claims
        answer = self._client.fetch(
            issuer.userinfo, {"Accept": "application/json", "Authorization": f"Bearer {access_token}"}
        )
        if answer.status != 200:
            raise SignInUnavailable(f"the issuer's userinfo: the answer has status {answer.status}, not 200")
        more = parse_object(answer.body, "the issuer's userinfo")
        if more.get("sub") != claims["sub"]:  # OpenID Connect Core 1.0, section 5.3.2
            raise SignInRefused("the issuer's userinfo is about somebody else", problem="subject")
        return {**more, **claims}

    def _person(self, claims: Mapping[str, Any]) -> SignedIn:
        name, groups_claim = self._settings.name_claim, self._settings.groups_claim
        if name not in claims:
            raise SignInRefused(
                f"the issuer says no {name}: it is neither in the ID token nor in userinfo",
                hint="set name_claim or scopes in sign-in.yaml",
                problem="name",
            )
        if name == "email" and claims.get("email_verified") is not True:
            raise SignInRefused("the issuer has not verified this user's email address", problem="name")
        groups = claims.get(groups_claim, [])
        is_elsewhere = isinstance(claims.get("_claim_names"), dict) and groups_claim in claims["_claim_names"]
        if is_elsewhere and groups_claim not in claims:
            raise SignInRefused(
                f"the issuer left out the claim {groups_claim}: the user is in too many groups for a token",
                hint='have it send only groups of this client: in Entra "Groups assigned to the application"',
                problem="groups",
            )
        listed = groups if isinstance(groups, list) else [groups]
        return person_of(claims[name], listed, claims.get("name"), f"the issuer's claim {name}")


def _issuer_of(document: Mapping[str, object], settings: OidcSettings) -> Issuer:
    named = document.get("issuer")
    if named != settings.issuer:
        raise SignInUnavailable(
            f"the issuer says that it is {server_text(named)}, and {settings.issuer} is configured",
            hint="write issuer in sign-in.yaml exactly as the issuer does, also the / at its end",
        )
    methods = document.get("token_endpoint_auth_methods_supported")
    is_post = isinstance(methods, list) and "client_secret_basic" not in methods and "client_secret_post" in methods
    return Issuer(
        _address(document, "authorization_endpoint"),
        _address(document, "token_endpoint"),
        _address(document, "jwks_uri"),
        _address(document, "userinfo_endpoint") if "userinfo_endpoint" in document else None,
        "client_secret_post" if is_post else "client_secret_basic",
        document.get("authorization_response_iss_parameter_supported") is True,
    )


def _address(document: Mapping[str, object], name: str) -> str:
    try:
        return web_address(document.get(name))
    except ValueError as error:
        raise SignInUnavailable(f"the issuer's document: {name}: {error}") from None


def _error_code(value: object) -> str:
    """Return an error as OAuth names it; what is none is not shown."""
    return value if isinstance(value, str) and _ERROR_CODE.fullmatch(value) else "an error without a name"
