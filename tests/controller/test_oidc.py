# SPDX-License-Identifier: Apache-2.0
"""Signing in at an OpenID Connect issuer: oidc-provider-mock, and an issuer that lies."""

from __future__ import annotations

import base64
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import oidc_provider_mock
import pytest
from joserfc.jwk import ECKey, RSAKey
from starlette.responses import JSONResponse, Response

from tests.controller.certificates import Authority
from tests.controller.lying_issuer import CLIENT, SECRET, LyingIssuer, dripping, endless, redirect
from vgpuctl.controller.sign_in.checks import check_oidc
from vgpuctl.controller.sign_in.oidc import DISCOVERY_PATH, Oidc, Pending
from vgpuctl.controller.sign_in.settings import OidcSettings, SignInSettings
from vgpuctl.controller.sign_in.signed_in import SignedIn, SignInRefused, SignInUnavailable
from vgpuctl.errors import Refused
from vgpuctl.value import replace

REDIRECT = "https://fleet.example.org/sign-in/oidc"
OTHER_KEY = RSAKey.generate_key(2048, {"kid": "other"}, private=True)
CURVE_KEY = ECKey.generate_key("P-256", {"kid": "curve"}, private=True)
ADA = SignedIn("ada", ("designers",), "Ada Lovelace")


class Clock:
    """Both clocks of a machine, which tests move: the time of day, and the time that only goes on."""

    def __init__(self) -> None:
        self.shift = self.passed = 0.0

    def time(self) -> float:
        return time.time() + self.shift

    def monotonic(self) -> float:
        return self.passed


@pytest.fixture(scope="module")
def running() -> Iterator[LyingIssuer]:
    issuer = LyingIssuer()
    yield issuer
    issuer.stop()


@pytest.fixture
def issuer(running: LyingIssuer) -> LyingIssuer:
    running.reset()
    running.hits.clear()
    return running


@pytest.fixture
def settings(issuer: LyingIssuer, tmp_path: Path) -> OidcSettings:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(SECRET)
    return OidcSettings(issuer.url, CLIENT, "https://fleet.example.org", str(secret))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def oidc(settings: OidcSettings, clock: Clock) -> Oidc:
    return Oidc(settings, seconds=2, clock=clock.time, monotonic=clock.monotonic)


def _sign_in(oidc: Oidc, issuer: LyingIssuer) -> SignedIn:
    url, pending = oidc.begin(REDIRECT)
    return oidc.finish(pending, issuer.log_in(url))


def _refusal(oidc: Oidc, issuer: LyingIssuer, problem: str) -> str:
    """Return the message of a sign-in that is refused; no part of a token is in it."""
    tokens: list[str] = []
    sign = issuer.sign
    issuer.sign = lambda claims: tokens.append(sign(claims)) or tokens[-1]  # type: ignore[func-returns-value]
    with pytest.raises(SignInRefused) as caught:
        _sign_in(oidc, issuer)
    assert caught.value.facts["problem"] == problem, caught.value.message
    shown = f"{caught.value!r} {caught.value.hint} {caught.value.facts}"
    for part in [part for token in tokens for part in token.split(".") if len(part) > 8]:
        assert part not in shown
    assert "access-token" not in shown
    assert SECRET not in shown
    assert "4711" not in shown
    return caught.value.message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_user_signs_in_at_a_provider_that_is_not_ours(settings: OidcSettings) -> None:
    user = oidc_provider_mock.User(
        sub="4711", claims={"preferred_username": "ada", "name": "Ada Lovelace", "groups": ["designers", "all"]}
    )
    with oidc_provider_mock.run_server_in_thread(user_claims=(user,)) as server:
        url = f"http://localhost:{server.server_port}"
        oidc = Oidc(replace(settings, issuer=url))
        address, pending = oidc.begin(REDIRECT)
        answer = httpx.post(address, data={"sub": "4711"})
        query = {key: values[0] for key, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}
        assert oidc.finish(pending, query) == SignedIn("ada", ("designers", "all"), "Ada Lovelace")
        denied = httpx.post(address, data={"action": "deny"})
        query = {key: values[0] for key, values in parse_qs(urlsplit(denied.headers["location"]).query).items()}
        with pytest.raises(SignInRefused):
            oidc.finish(pending, query)


def test_an_honest_issuer(oidc: Oidc, issuer: LyingIssuer) -> None:
    """It checks the client's secret, the redirect address and PKCE's verifier."""
    assert [_sign_in(oidc, issuer) for _ in range(3)] == [ADA] * 3
    assert issuer.hits[DISCOVERY_PATH] == issuer.hits["/keys"] == 1


def test_what_goes_through_the_browser_has_no_secret(oidc: Oidc) -> None:
    url, pending = oidc.begin(REDIRECT)
    _, second = oidc.begin(REDIRECT)
    assert SECRET not in url
    assert pending.verifier not in url
    assert parse_qs(urlsplit(url).query)["redirect_uri"] == [REDIRECT]
    for name in ("state", "nonce", "verifier"):
        value = getattr(pending, name)
        assert len(value) >= 43
        assert value != getattr(second, name)
        assert value not in repr(pending)
    assert len({pending.state, pending.nonce, pending.verifier}) == 3


def test_a_verifier_of_another_sign_in_gets_no_token(oidc: Oidc, issuer: LyingIssuer) -> None:
    url, pending = oidc.begin(REDIRECT)
    with pytest.raises(SignInRefused, match="invalid_grant"):
        oidc.finish(replace(pending, verifier="x" * 64), issuer.log_in(url))
    again = issuer.log_in(url)
    assert oidc.finish(pending, again) == ADA
    with pytest.raises(SignInRefused, match="invalid_grant"):
        oidc.finish(pending, again)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda query: query.update(state="x"), "state"),
        (lambda query: query.update(state="\u202e\ud800"), "state"),
        (lambda query: query.pop("state"), "state"),
        (lambda query: query.pop("code"), "code"),
        (lambda query: query.update(code="x" * 8193), "code"),
        (lambda query: query.update(code="\r\nX: y"), "code"),
        (lambda query: query.update(code="\ud800"), "code"),
        (lambda query: query.update(code="&code_verifier=x"), "invalid_grant"),
        (lambda query: query.update(iss="https://evil.example.org"), "issuer"),
        (lambda query: query.update(error="access_denied"), "denied"),
        (lambda query: query.update(error="<script>"), "denied"),
        (lambda query: query.update(error="x", state="y"), "state"),
    ],
)
def test_an_answer_of_the_browser_that_is_wrong(
    oidc: Oidc, issuer: LyingIssuer, change: Callable[[dict[str, str]], object], problem: str
) -> None:
    url, pending = oidc.begin(REDIRECT)
    query = issuer.log_in(url)
    change(query)
    with pytest.raises(SignInRefused) as caught:
        oidc.finish(pending, query)
    assert caught.value.facts["problem"] == problem
    assert "<script>" not in caught.value.message
    assert issuer.hits["/token"] == (problem == "invalid_grant")


def test_an_issuer_that_always_names_itself_has_to(oidc: Oidc, issuer: LyingIssuer) -> None:
    """RFC 9207: else an answer of another issuer could be passed off as this one's."""
    issuer.document = lambda document: document.update(authorization_response_iss_parameter_supported=True)
    url, pending = oidc.begin(REDIRECT)
    query = issuer.log_in(url)
    with pytest.raises(SignInRefused, match="the answer is from None"):
        oidc.finish(pending, query)
    assert oidc.finish(pending, {**query, "iss": issuer.url}) == ADA


@pytest.mark.parametrize("seconds", [601, -601])
def test_a_sign_in_that_took_too_long(oidc: Oidc, issuer: LyingIssuer, clock: Clock, seconds: int) -> None:
    url, pending = oidc.begin(REDIRECT)
    query = issuer.log_in(url)
    clock.shift += seconds
    with pytest.raises(SignInRefused) as caught:
        oidc.finish(pending, query)
    assert caught.value.facts["problem"] == "late"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"iss": "https://evil.example.org"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"aud": ["other", "more"]}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": [CLIENT, "other"]}, "party"),
        ({"azp": "other"}, "party"),
        ({"nonce": "of another sign-in"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"nonce": ["x"]}, "nonce"),
        ({"nonce": "\ud800"}, "nonce"),
        ({"at_hash": "\ud800"}, "at_hash"),
        ({"preferred_username": "\ud800"}, "name"),
        ({"iss": "\ud800"}, "issuer"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "2099-01-01"}, "exp"),
        ({"exp": True}, "exp"),
        ({"iat": 4_000_000_000}, "clock"),
        ({"iat": None}, "iat"),
        ({"nbf": 4_000_000_000}, "clock"),
        ({"at_hash": "x"}, "at_hash"),
        ({"at_hash": 7}, "at_hash"),
        ({"sub": ""}, "subject"),
        ({"sub": None}, "subject"),
        ({"preferred_username": None}, "name"),
        ({"preferred_username": ["ada"]}, "name"),
        ({"preferred_username": "<b>ada</b>"}, "name"),
        ({"preferred_username": "x" * 200}, "name"),
        ({"groups": None, "_claim_names": {"groups": "src1"}}, "groups"),
    ],
)
def test_a_claim_that_is_wrong(oidc: Oidc, issuer: LyingIssuer, change: dict[str, Any], problem: str) -> None:
    def lie(claims: dict[str, Any]) -> None:
        claims.update(change)
        for name in [name for name, value in change.items() if value is None]:
            del claims[name]

    issuer.claims = lie
    _refusal(oidc, issuer, problem)


def test_a_client_among_several_audiences(oidc: Oidc, issuer: LyingIssuer) -> None:
    issuer.claims = lambda claims: claims.update(aud=[CLIENT, "account"], azp=CLIENT)
    assert _sign_in(oidc, issuer) == ADA


def test_clocks_may_differ_by_a_minute(oidc: Oidc, issuer: LyingIssuer) -> None:
    for difference, problem in ((50, None), (-50, None), (70, "clock"), (-70, "expired")):

        def shift(claims: dict[str, Any], seconds: int = difference) -> None:
            claims["iat"] += seconds
            claims["exp"] = claims["iat"]

        issuer.claims = shift
        if problem is None:
            assert _sign_in(oidc, issuer) == ADA
        else:
            assert "by this machine's clock" in _refusal(oidc, issuer, problem)
        issuer.sign = issuer.sign_honestly


def _with_bad_signature(token: str) -> str:
    head, payload, signature = token.split(".")
    flipped = ("B" if signature[0] == "A" else "A") + signature[1:]
    return f"{head}.{payload}.{flipped}"


def _with_other_claims(token: str) -> str:
    head, payload, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    claims["preferred_username"] = "root"
    return f"{head}.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.{signature}"


SIGNATURES: dict[str, tuple[Callable[[LyingIssuer, dict[str, Any]], str], str]] = {
    "nobody's": (lambda issuer, claims: issuer.sign_not(claims), "algorithm"),
    "public key as password": (lambda issuer, claims: issuer.sign_with_public_key(claims), "algorithm"),
    "other key, same id": (
        lambda issuer, claims: issuer.sign_with({"alg": "RS256", "kid": "one"}, claims, OTHER_KEY), "signature",
    ),
    "other kind of key": (
        lambda issuer, claims: issuer.sign_with({"alg": "ES256", "kid": "one"}, claims, CURVE_KEY), "signature",
    ),
    "unknown key": (
        lambda issuer, claims: issuer.sign_with({"alg": "RS256", "kid": "other"}, claims, OTHER_KEY), "key",
    ),
    "key in the header": (
        lambda issuer, claims: issuer.sign_with(
            {"alg": "RS256", "jwk": OTHER_KEY.as_dict(private=False)}, claims, OTHER_KEY
        ), "signature",
    ),
    "flipped": (lambda issuer, claims: _with_bad_signature(issuer.sign_honestly(claims)), "signature"),
    "changed": (lambda issuer, claims: _with_other_claims(issuer.sign_honestly(claims)), "signature"),
    "cut": (lambda issuer, claims: issuer.sign_honestly(claims).rpartition(".")[0], "token"),
    "none": (lambda issuer, claims: "", "token"),
    "words": (lambda issuer, claims: "not a token at all", "token"),
    "not ASCII": (lambda issuer, claims: "é.é.é", "token"),
    "deep": (lambda issuer, claims: base64.urlsafe_b64encode(b"[" * 6000).decode() + ".e30.AA", "token"),
    "list": (lambda issuer, claims: base64.urlsafe_b64encode(b"[1]").decode() + ".e30.AA", "token"),
    "algorithm is a list": (
        lambda issuer, claims: base64.urlsafe_b64encode(b'{"alg": ["RS256"]}').decode().rstrip("=") + ".e30.AA",
        "algorithm",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_that_is_wrong(oidc: Oidc, issuer: LyingIssuer, name: str) -> None:
    sign, problem = SIGNATURES[name]
    issuer.sign = lambda claims: sign(issuer, claims)
    _refusal(oidc, issuer, problem)


def test_no_token_at_all(oidc: Oidc, issuer: LyingIssuer) -> None:
    issuer.tokens = lambda tokens: tokens.pop("id_token")
    assert "openid" in _refusal(oidc, issuer, "token")


def test_a_token_without_a_key_id_is_of_the_only_key(oidc: Oidc, issuer: LyingIssuer, clock: Clock) -> None:
    issuer.sign = lambda claims: issuer.sign_with({"alg": "RS256"}, claims, issuer.key)
    assert _sign_in(oidc, issuer) == ADA
    issuer.published.append(OTHER_KEY.as_dict(private=False))
    clock.passed += 3601
    _refusal(oidc, issuer, "key")


def test_new_keys_are_fetched_at_most_once_a_minute(oidc: Oidc, issuer: LyingIssuer, clock: Clock) -> None:
    assert _sign_in(oidc, issuer) == ADA
    issuer.sign = lambda claims: issuer.sign_with({"alg": "RS256", "kid": "other"}, claims, OTHER_KEY)
    clock.passed += 59
    _refusal(oidc, issuer, "key")
    assert issuer.hits["/keys"] == 1
    clock.passed += 1
    for _ in range(3):
        _refusal(oidc, issuer, "key")
    assert issuer.hits["/keys"] == 2
    issuer.published.append(OTHER_KEY.as_dict(private=False))
    clock.passed += 60
    assert _sign_in(oidc, issuer) == ADA
    assert issuer.hits["/keys"] == 3


def test_a_key_that_was_withdrawn_counts_for_an_hour(oidc: Oidc, issuer: LyingIssuer, clock: Clock) -> None:
    assert _sign_in(oidc, issuer) == ADA
    issuer.published = [OTHER_KEY.as_dict(private=False)]
    clock.passed += 3599
    assert _sign_in(oidc, issuer) == ADA
    clock.passed += 1
    _refusal(oidc, issuer, "key")


def test_keys_that_cannot_be_used_are_ignored(oidc: Oidc, issuer: LyingIssuer) -> None:
    public = issuer.published[0]
    secret = base64.urlsafe_b64encode(b"known to all" * 4).decode()
    issuer.published = [
        {"kty": "AKP", "kid": "one"}, {"kty": "oct", "k": secret, "kid": "one"}, {**public, "use": "enc"}, {},
        {"kty": "RSA", "kid": "one"}, {"kty": "EC", "crv": "P-256", "x": 1, "y": [], "kid": "one"}, public,
    ]  # fmt: skip
    assert _sign_in(oidc, issuer) == ADA
    issuer.published = issuer.published[:-1]


@pytest.mark.parametrize("keys", [{"keys": None}, {}, {"keys": [{}] * 101}, {"keys": {"a": 1}}])
def test_what_is_no_list_of_keys(oidc: Oidc, issuer: LyingIssuer, keys: object) -> None:
    issuer.pages["/keys"] = JSONResponse(keys)
    with pytest.raises(SignInUnavailable, match="are not a list"):
        _sign_in(oidc, issuer)


def test_claims_at_userinfo(oidc: Oidc, issuer: LyingIssuer) -> None:
    issuer.userinfo = {"sub": "4711", "preferred_username": "eve", "groups": ["admins"], "name": "Eve"}
    assert _sign_in(oidc, issuer) == ADA
    assert issuer.hits["/userinfo"] == 0, "the token has all"
    issuer.claims = lambda claims: claims.pop("groups")
    assert _sign_in(oidc, issuer) == SignedIn("ada", ("admins",), "Ada Lovelace"), "the token's claims win"
    issuer.userinfo = {**issuer.userinfo, "sub": "4712"}
    _refusal(oidc, issuer, "subject")


def test_an_address_is_a_name_only_if_the_issuer_verified_it(settings: OidcSettings, issuer: LyingIssuer) -> None:
    oidc = Oidc(replace(settings, name_claim="email"))
    for verified in (None, False, "true", 1):
        issuer.claims = lambda claims, v=verified: claims.update(email="ada@example.org", email_verified=v)
        _refusal(oidc, issuer, "name")
        issuer.sign = issuer.sign_honestly
    issuer.claims = lambda claims: claims.update(email="ada@example.org", email_verified=True)
    assert _sign_in(oidc, issuer).name == "ada@example.org"


def test_a_user_with_too_many_groups(oidc: Oidc, issuer: LyingIssuer, caplog: pytest.LogCaptureFixture) -> None:
    issuer.claims = lambda claims: claims.update(groups=[f"{n:0190}" for n in range(2500)] + ["a\0", "y" * 201, 7])
    with caplog.at_level(logging.WARNING):
        person = _sign_in(oidc, issuer)
    assert len(person.groups) == 2000
    assert len(person.warnings) == len(caplog.records) == 2
    issuer.claims = lambda claims: claims.update(groups="one")
    assert _sign_in(oidc, issuer).groups == ("one",)
    issuer.claims = lambda claims: claims.pop("groups")
    assert _sign_in(oidc, issuer).groups == ()


DOCUMENTS: dict[str, tuple[Callable[[LyingIssuer], object], str]] = {
    "other issuer": (
        lambda issuer: setattr(issuer, "document", lambda d: d.update(issuer="https://evil.example.org")),
        "says that it is https://evil.example.org",
    ),
    "slash": (
        lambda issuer: setattr(issuer, "document", lambda d: d.update(issuer=d["issuer"] + "/")), "says that it is",
    ),
    "endpoint in the clear": (
        lambda issuer: setattr(issuer, "document", lambda d: d.update(token_endpoint="http://sso.example.org/token")),
        "token_endpoint: .* in the clear",
    ),
    "endpoint is a file": (
        lambda issuer: setattr(issuer, "document", lambda d: d.update(jwks_uri="file:///etc/passwd")), "jwks_uri",
    ),
    "endpoint is missing": (
        lambda issuer: setattr(issuer, "document", lambda d: d.pop("authorization_endpoint")), "authorization_endpoint",
    ),
    "100 MB": (lambda issuer: issuer.pages.update({DISCOVERY_PATH: endless}), "more than 1024 KiB"),
    "redirect": (
        lambda issuer: issuer.pages.update({DISCOVERY_PATH: redirect(f"{issuer.url}/elsewhere")}), "a redirect",
    ),
    "not found": (lambda issuer: issuer.pages.update({DISCOVERY_PATH: Response("", 404)}), "status 404"),
    "failed": (lambda issuer: issuer.pages.update({DISCOVERY_PATH: Response("", 503)}), "status 503"),
    "html": (lambda issuer: issuer.pages.update({DISCOVERY_PATH: Response("<html>")}), "not a JSON object"),
    "list": (lambda issuer: issuer.pages.update({DISCOVERY_PATH: Response("[]")}), "not a JSON object"),
    "deep": (lambda issuer: issuer.pages.update({DISCOVERY_PATH: Response("[" * 100_000)}), "not a JSON object"),
    "binary": (lambda issuer: issuer.pages.update({DISCOVERY_PATH: Response(b"\xff\0")}), "not a JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_that_is_wrong(oidc: Oidc, issuer: LyingIssuer, name: str) -> None:
    lie, expected = DOCUMENTS[name]
    lie(issuer)
    with pytest.raises(SignInUnavailable, match=expected):
        oidc.begin(REDIRECT)
    assert sum(issuer.hits.values()) == 1, "nothing else is fetched"


def test_an_issuer_that_failed_is_left_alone_for_a_moment(oidc: Oidc, issuer: LyingIssuer, clock: Clock) -> None:
    issuer.pages[DISCOVERY_PATH] = Response("", 503)
    for _ in range(3):
        with pytest.raises(SignInUnavailable, match="503"):
            oidc.begin(REDIRECT)
    assert issuer.hits[DISCOVERY_PATH] == 1
    issuer.reset()
    clock.passed += 5
    assert _sign_in(oidc, issuer) == ADA


def test_an_issuer_of_which_a_byte_comes_now_and_then(settings: OidcSettings, issuer: LyingIssuer) -> None:
    ended = threading.Event()
    issuer.pages[DISCOVERY_PATH] = lambda: dripping(ended)
    with pytest.raises(SignInUnavailable, match=r"did not answer within 0\.3 s"):
        Oidc(settings, seconds=0.3).begin(REDIRECT)
    assert ended.wait(10)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_issuer_that_says_nothing(settings: OidcSettings, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"{scheme}://localhost:{listening.getsockname()[1]}"
        with pytest.raises(SignInUnavailable, match=r"did not answer within 0\.3 s"):
            Oidc(replace(settings, issuer=url), seconds=0.3).begin(REDIRECT)


def test_an_issuer_that_is_down(settings: OidcSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://localhost:{listening.getsockname()[1]}"
    with pytest.raises(SignInUnavailable, match="Connection refused"):
        Oidc(replace(settings, issuer=url)).begin(REDIRECT)


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        (Response("", 503), SignInUnavailable),
        (Response("<html>access-token"), SignInUnavailable),
        (redirect("https://evil.example.org"), SignInUnavailable),
        (JSONResponse({"error": "<b>access-token</b>"}, 400), SignInRefused),
        (JSONResponse({"error": 7}), SignInRefused),
        (JSONResponse({}), SignInRefused),
        (endless, SignInUnavailable),
    ],
)
def test_a_token_endpoint_that_fails(oidc: Oidc, issuer: LyingIssuer, page: Response, kind: type[Exception]) -> None:
    issuer.pages["/token"] = page
    with pytest.raises(kind) as caught:
        _sign_in(oidc, issuer)
    assert "access-token" not in str(caught.value)


def test_the_secret_of_the_client(settings: OidcSettings, issuer: LyingIssuer) -> None:
    secret, oidc = Path(str(settings.client_secret_file)), Oidc(settings)
    secret.write_text("old-secret")
    with pytest.raises(SignInRefused, match="invalid_client") as caught:
        _sign_in(oidc, issuer)
    assert "client_secret_file" in str(caught.value.hint)
    assert "old-secret" not in repr(caught.value)
    secret.write_text(f"{SECRET}\n")
    assert _sign_in(oidc, issuer) == ADA, "a new secret needs no restart"
    secret.write_text("gehëim")
    with pytest.raises(Refused, match="not ASCII"):
        _sign_in(oidc, issuer)
    secret.write_text(SECRET)
    issuer.secret_in_form = True
    issuer.document = lambda d: d.update(token_endpoint_auth_methods_supported=["client_secret_post"])
    assert _sign_in(Oidc(settings), issuer) == ADA


def test_certificates_are_checked(settings: OidcSettings, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for hosts, days, trusted in (
        (("localhost",), 1, True),
        (("sso.example.org",), 1, False),
        (("localhost",), -1, False),
    ):
        certificate, key = authority.sign(f"issuer-{hosts[0]}-{days}", hosts, days=days)
        lying = LyingIssuer(certificate=(str(certificate), str(key)))
        try:
            secured = replace(settings, issuer=lying.url, ca_file=str(authority.path))
            if trusted:
                assert _sign_in(Oidc(secured), lying) == ADA
                with pytest.raises(SignInUnavailable, match="is not trusted"):
                    Oidc(replace(secured, ca_file=None)).begin(REDIRECT)
            else:
                with pytest.raises(SignInUnavailable, match="is not trusted"):
                    Oidc(secured).begin(REDIRECT)
        finally:
            lying.stop()
    (tmp_path / "none.pem").write_text("none")
    with pytest.raises(SignInUnavailable, match="no certificates"):
        Oidc(replace(settings, ca_file=str(tmp_path / "none.pem")))


def test_doctor(settings: OidcSettings, issuer: LyingIssuer) -> None:
    assert check_oidc(SignInSettings()) == ()
    assert check_oidc(SignInSettings(oidc=settings)) == ()
    issuer.published = []
    (problem,) = check_oidc(SignInSettings(oidc=settings))
    assert "no keys" in problem.text
    issuer.document = lambda document: document.update(issuer="https://evil.example.org")
    (problem,) = check_oidc(SignInSettings(oidc=settings))
    assert (problem.section, "exactly" in str(problem.fix)) == ("oidc", True)
    (problem,) = check_oidc(SignInSettings(oidc=replace(settings, client_secret_file="/no/such/file")))
    assert "cannot be read" in problem.text


def test_what_is_pending_can_be_stored() -> None:
    pending = Pending("a", "b", "c", REDIRECT, 1.5)
    assert Pending(**json.loads(json.dumps(pending.__dict__))) == pending
