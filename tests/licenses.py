# SPDX-License-Identifier: Apache-2.0
"""Tokens of NVIDIA's licenses, and folders with them, for tests."""

from __future__ import annotations

import base64
import json
from pathlib import Path

MARKER = "c2VjcmV0LW1hcmtlcg"
"""The signature of each token: what must be in no output."""
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nTUlJQg==\n-----END CERTIFICATE-----"


def token_text(**claims: object) -> str:
    """Return a JSON Web Token with these claims."""
    parts = (json.dumps({"alg": "RS256"}), json.dumps(claims))
    return ".".join([*(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts), MARKER])


def put_license(etc: Path, name: str = "cad", *, mode: int = 0o600, **files: str) -> Path:
    """Make the folder of a license below a host's /etc/vgpuctl, with these files; return it.

    `etc`: where that is on this machine. An underscore in a file's name stands for a dot.
    """
    folder = etc / "licenses" / name
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for file, text in (files or {"client_tok": token_text()}).items():
        path = folder / file.replace("_", ".")
        path.write_text(text)
        path.chmod(mode)
    return folder
