# SPDX-License-Identifier: Apache-2.0
"""The SSH host key of a simulated host, with which it signs what another host gets. It follows from the machine id."""

from __future__ import annotations

import hashlib

KEY_PATH = "/etc/ssh/ssh_host_ed25519_key"


def host_key_text(machine_id: str) -> str:
    """Return the private key as its file has it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(machine_id.encode()).digest())
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
