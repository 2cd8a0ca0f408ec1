# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of an SSH key, by which people and host.yaml name it."""

from __future__ import annotations

import base64
import hashlib


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint as ssh prints it (`SHA256:...`); `blob`: the public key in wire format."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
