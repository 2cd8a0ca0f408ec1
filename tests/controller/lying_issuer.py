# SPDX-License-Identifier: Apache-2.0
"""An OpenID Connect issuer for tests, which set what it answers, also what no issuer should."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import uvicorn
from authlib.oidc.core.util import create_half_hash
from joserfc import jws
from joserfc.jwk import Key, RSAKey
from joserfc.jws import JWSRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

CLIENT, SECRET = "fleet", "client-secret"
Change = Callable[[dict[str, Any]], object]


class _Wide(JWSRegistry):
    max_payload_length = 4 << 20


class LyingIssuer:
    """Serves on a loopback port. Tests change its attributes; without changes it is honest.

    `claims`, `document`, `tokens` change what it says; `sign` makes the ID token; `pages` replace whole answers, by
    path; `hits` counts the requests by path.
    """

    def __init__(self, *, certificate: tuple[str, str] | None = None) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://localhost:{self._listening.getsockname()[1]}"
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"}, private=True)
        self.published: list[dict[str, Any]] = [dict(self.key.as_dict(private=False))]
        self.hits: Counter[str] = Counter()
        self.reset()
        paths = ("/.well-known/openid-configuration", "/authorize", "/token", "/keys", "/userinfo")
        app = Starlette(routes=[Route(path, self._answer, methods=["GET", "POST"]) for path in paths])
        files = {} if certificate is None else {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]}
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", **files))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Be honest again."""
        self.claims: Change = lambda claims: None
        self.document: Change = lambda document: None
        self.tokens: Change = lambda tokens: None
        self.userinfo: dict[str, Any] | None = None
        self.sign: Callable[[dict[str, Any]], str] = self.sign_honestly
        self.pages: dict[str, Response | Callable[[], Response]] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.secret_in_form = False
        self.published = [dict(self.key.as_dict(private=False))]

    def stop(self) -> None:
        """Stop it."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self._listening.close()

    def log_in(self, url: str) -> dict[str, str]:
        """Be the browser of ada: return the query with which the issuer sends it back."""
        query = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        return {"state": query["state"], "code": code}

    def sign_honestly(self, claims: dict[str, Any]) -> str:
        """Return a token of the issuer's key."""
        return self.sign_with({"alg": "RS256", "kid": "one"}, claims, self.key)

    @staticmethod
    def sign_with(header: dict[str, Any], claims: dict[str, Any], key: Key) -> str:
        """Return a token with this header, by any key."""
        registry = _Wide(algorithms=[header["alg"]], strict_check_header=False)
        return jws.serialize_compact(header, json.dumps(claims), key, registry=registry)

    def sign_with_public_key(self, claims: dict[str, Any]) -> str:
        """Return a token whose password is the public key, in the form in which it is published."""
        head = _encoded({"alg": "HS256", "kid": "one"}) + "." + _encoded(claims)
        digest = hmac.digest(self.key.as_pem(private=False), head.encode(), "sha256")
        return f"{head}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"

    @staticmethod
    def sign_not(claims: dict[str, Any]) -> str:
        """Return a token that nobody signed."""
        return f"{_encoded({'alg': 'none', 'kid': 'one'})}.{_encoded(claims)}."

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        self.hits[path] += 1
        if path in self.pages:
            page = self.pages[path]
            return page if isinstance(page, Response) else page()
        if path == "/token":
            form = {key: values[0] for key, values in parse_qs((await request.body()).decode()).items()}
            return self._token(form, request.headers)
        if path == "/userinfo":
            assert request.headers["authorization"] == "Bearer access-token"
            return JSONResponse(self.userinfo)
        return JSONResponse({"keys": self.published} if path == "/keys" else self._describe())

    def _describe(self) -> dict[str, Any]:
        document = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
        }
        if self.userinfo is not None:
            document["userinfo_endpoint"] = f"{self.url}/userinfo"
        self.document(document)
        return document

    def _token(self, form: dict[str, str], headers: Any) -> Response:
        basic = f"Basic {base64.b64encode(f'{CLIENT}:{SECRET}'.encode()).decode()}"
        is_client = (
            form.get("client_secret") == SECRET if self.secret_in_form else headers.get("authorization") == basic
        )
        if not is_client:
            return JSONResponse({"error": "invalid_client", "error_description": "<b>no</b>"}, 401)
        asked = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or asked["code_challenge"] != challenge or asked["redirect_uri"] != form["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.url, "aud": CLIENT, "sub": "4711", "exp": now + 300, "iat": now, "nonce": asked["nonce"],
            "at_hash": create_half_hash("access-token", "RS256").decode(),
            "preferred_username": "ada", "name": "Ada Lovelace", "groups": ["designers"],
        }  # fmt: skip
        self.claims(claims)
        tokens = {"access_token": "access-token", "token_type": "Bearer", "id_token": self.sign(claims)}
        self.tokens(tokens)
        return JSONResponse(tokens)


def _encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def endless(chunk: bytes = b'{"x": "' + b"x" * 65536, chunks: int = 1600) -> StreamingResponse:
    """Return an answer of 100 MB."""

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(chunks):
            yield chunk

    return StreamingResponse(parts(), media_type="application/json")


def dripping(ended: threading.Event) -> StreamingResponse:
    """Return an answer of which a byte comes now and then, until the reader is gone: each single wait is short."""

    async def parts() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b" "
                await asyncio.sleep(0.02)
        finally:
            ended.set()

    return StreamingResponse(parts(), media_type="application/json")


def redirect(url: str) -> RedirectResponse:
    """Return a redirect."""
    return RedirectResponse(url, 302)
