# SPDX-License-Identifier: Apache-2.0
"""Checks ID tokens: OpenID Connect Core 1.0, section 3.1.3.7, and RFC 8725 (JSON Web Token Best Current Practices).

Only signatures with an issuer's private key count: a token that is not signed, or is signed with something that others
know, such as the public key as a password (HS256), is refused. No error quotes a token.
"""

from __future__ import annotations

import hmac
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

from authlib.oidc.core.util import create_half_hash
from joserfc.errors import JoseError
from joserfc.jwk import Key, import_key
from joserfc.jws import JWSRegistry, extract_compact
from joserfc.jwt import decode

from vgpuctl.controller.sign_in.settings import CLOCK_SKEW_SECONDS
from vgpuctl.controller.sign_in.signed_in import SignInRefused, SignInUnavailable, server_text
from vgpuctl.controller.sign_in.web_fetch import MAX_ANSWER_BYTES, WebClient
from vgpuctl.value import Value

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
MAX_KEYS = 100
AGAIN_SECONDS = 60.0
"""For a key that it does not know, a controller fetches the issuer's keys at most this often."""
KEEP_SECONDS = 3600.0
"""Keys that an issuer withdrew count at most this long."""
_KEY_TYPES = ("RSA", "EC", "OKP")
_REJECTED = (JoseError, ValueError, TypeError, AttributeError, KeyError, RecursionError)


class Expected(Value):
    """What an ID token has to have in it."""

    issuer: str
    client_id: str
    nonce: str
    now: float


class _Registry(JWSRegistry):
    max_header_length = 8192
    max_payload_length = MAX_ANSWER_BYTES
    max_signature_length = 8192


class KeyRing:
    """The keys with which an issuer signs. They are fetched when they are needed, and kept; threads may share it."""

    def __init__(self, client: WebClient, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._keys: tuple[Key, ...] = ()
        self._fetched_at = -math.inf
        self._tried_at = -math.inf

    def find(self, kid: str | None, address: str) -> Key | None:
        """Return the key with this id, or the only one if the token has no id; None: there is none.

        Raises:
            SignInUnavailable: the keys cannot be fetched.
        """
        with self._lock:
            if self._monotonic() - self._fetched_at >= KEEP_SECONDS:
                self._fetch(address)
            key = self._pick(kid)
            if key is None and self._monotonic() - self._tried_at >= AGAIN_SECONDS:
                self._fetch(address)
                key = self._pick(kid)
            return key

    def fetch(self, address: str) -> int:
        """Fetch the keys, and return how many there are.

        Raises:
            SignInUnavailable: they cannot be fetched.
        """
        with self._lock:
            self._fetch(address)
            return len(self._keys)

    def _pick(self, kid: str | None) -> Key | None:
        keys = self._keys if kid is None else tuple(key for key in self._keys if key.kid == kid)
        return keys[0] if len(keys) == 1 else None

    def _fetch(self, address: str) -> None:
        self._tried_at = self._monotonic()
        listed = self._client.fetch_object(address, "the issuer's keys").get("keys")
        if not isinstance(listed, list) or len(listed) > MAX_KEYS:
            raise SignInUnavailable(f"the issuer's keys at {server_text(address)} are not a list of at most {MAX_KEYS}")
        self._keys = tuple(key for key in map(_signing_key, listed) if key is not None)
        self._fetched_at = self._tried_at


def verify_id_token(
    token: object, access_token: object, keys: Callable[[str | None], Key | None], expected: Expected
) -> Mapping[str, Any]:
    """Return the claims of a token whose signature, issuer, audience, times and nonce are right.

    Raises:
        SignInRefused: something is wrong; `problem` names it.
    """
    if not isinstance(token, str) or not token:
        raise _refused("token", "the issuer gave no ID token: is openid among the scopes?")
    header = _read_header(token)
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise _refused("algorithm", f"it is signed by {server_text(algorithm)}, which proves nothing about the issuer")
    key = keys(kid if isinstance(kid, str) else None)
    if key is None:
        named = "names no key" if kid is None else "names a key that the issuer does not have"
        raise _refused("key", f"it {named}")
    claims: Mapping[str, Any] | None = None
    try:
        claims = decode(token, key, list(ALGORITHMS), _registry()).claims
    except _REJECTED:
        claims = None
    if claims is None:
        raise _refused("signature", "its signature is not the issuer's")
    _check_parties(claims, expected)
    _check_times(claims, expected.now)
    _check_bindings(claims, access_token, str(algorithm), expected)
    return claims


def _check_parties(claims: Mapping[str, Any], expected: Expected) -> None:
    if claims.get("iss") != expected.issuer:
        text = f"its issuer is {server_text(claims.get('iss'))}, and {expected.issuer} is configured"
        raise _refused("issuer", text)
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if expected.client_id not in audiences:
        raise _refused("audience", f"it is for {server_text(audience)}, and not for {expected.client_id}")
    party = claims.get("azp")
    if party != expected.client_id and (party is not None or len(audiences) > 1):
        raise _refused("party", f"it was issued to {server_text(party)}, and not to {expected.client_id}")


def _check_times(claims: Mapping[str, Any], now: float) -> None:
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    if now >= expires + CLOCK_SKEW_SECONDS:
        text = f"it expired {now - expires:.0f} s ago by this machine's clock"
        raise _refused("expired", text, hint="compare the clocks of both machines: timedatectl")
    begins = max(issued, _time(claims, "nbf")) if "nbf" in claims else issued
    if begins > now + CLOCK_SKEW_SECONDS:
        text = f"it is from the future: {begins - now:.0f} s by this machine's clock"
        raise _refused("clock", text, hint="compare the clocks of both machines: timedatectl")


def _check_bindings(claims: Mapping[str, Any], access_token: object, algorithm: str, expected: Expected) -> None:
    nonce, subject = claims.get("nonce"), claims.get("sub")
    if not isinstance(nonce, str) or not _is_same(nonce, expected.nonce):
        raise _refused("nonce", "it belongs to another sign-in: its nonce is not the one that was sent")
    if not isinstance(subject, str) or not subject:
        raise _refused("subject", "it says nothing about whom it is for")
    if "at_hash" in claims and not _is_half_hash(claims["at_hash"], access_token, algorithm):
        raise _refused("at_hash", "it belongs to another access token")


def _is_half_hash(given: object, access_token: object, algorithm: str) -> bool:
    name = "EdDSA" if algorithm == "Ed25519" else algorithm
    if not isinstance(given, str) or not isinstance(access_token, str) or not access_token.isascii():
        return False
    return _is_same(given, create_half_hash(access_token, name).decode())


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _refused(name, f"its claim {name} is not a time")
    return value


def _read_header(token: str) -> Mapping[str, Any]:
    header: Mapping[str, Any] | None = None
    try:
        header = extract_compact(token.encode(), registry=_registry()).headers()
    except _REJECTED:
        header = None
    if not isinstance(header, Mapping):
        raise _refused("token", "it is not a signed JSON web token")
    return header


def _registry() -> JWSRegistry:
    return _Registry(algorithms=list(ALGORITHMS), strict_check_header=False)


def _signing_key(data: object) -> Key | None:
    """Return a public key for signatures; None for others, and for those that this program does not understand."""
    if not isinstance(data, dict) or data.get("kty") not in _KEY_TYPES or data.get("use", "sig") != "sig":
        return None
    try:
        return import_key(data)
    except _REJECTED:
        return None


def _refused(problem: str, text: str, hint: str | None = None) -> SignInRefused:
    return SignInRefused(f"the issuer's ID token is refused: {text}", hint=hint, problem=problem)
