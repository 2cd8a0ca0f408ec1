# SPDX-License-Identifier: Apache-2.0
"""What the database has of secrets, and the text that belongs to a cookie."""

from __future__ import annotations

import hashlib
import hmac
import secrets


def digest_of(secret: str) -> str:
    """Return what the database has of a secret, which has more entropy than anybody can try."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_token() -> str:
    """Return the secret of a new token."""
    return f"vgpuctl_{secrets.token_urlsafe(32)}"


def header_token(secret: str) -> str:
    """Return what a change must carry in a header besides the cookie with this secret: other sites cannot read it."""
    return hmac.digest(secret.encode(), b"vgpuctl header token", "sha256").hex()


def is_header_token(secret: str, given: str) -> bool:
    """Return whether a header has the token that belongs to a cookie's secret."""
    return hmac.compare_digest(header_token(secret).encode(), given.encode())
