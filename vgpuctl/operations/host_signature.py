# SPDX-License-Identifier: Apache-2.0
"""What two hosts agree on about a VM that moves, signed with their SSH host keys.

A controller carries it from one to the other. A stolen one could put another definition or another record in its place,
of which root's libvirt would make a domain. So each host's root pins the keys of the others in host.yaml (`agent:
allow: migrate_to`), and what comes for an account counts only with a signature by one of these keys.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from vgpuctl.errors import HostCannot
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.host_key import fingerprint
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

KEY_FILES = tuple(f"/etc/ssh/ssh_host_{kind}_key" for kind in ("ed25519", "ecdsa", "rsa"))
"""The first one that a host has signs; in FIPS mode there is no ed25519 key."""
_SIGNATURE = re.compile(r"(?P<key>[a-z0-9@.-]+ (?P<blob>[A-Za-z0-9+/]+=*)) (?P<signed>[A-Za-z0-9+/]+=*)", re.ASCII)


def sign(host: Host, value: Value) -> str:
    """Return the signature of a value by this host: the key's type, the public key and the signature, both in base64.

    Raises:
        HostCannot: the host has no key that can be read.
        ImportError: the library of the extra `ssh` is missing.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    problems = []
    for path in KEY_FILES:
        try:
            key: Any = load_ssh_private_key(host.sysfs.read(path).encode(), None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a passphrase
            problems.append(f"{path}: {error}")
            continue
        public = key.public_key()
        name = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        return f"{name} {base64.b64encode(key.sign(_bytes_of(value), *_hashing(public))).decode()}"
    raise HostCannot(
        f"this host has no SSH key to sign with: {'; '.join(problems)}",
        hint="ssh-keygen -A makes those that are missing",
        check="host-key",
    )


def find_signer(value: Value, signature: str | None) -> str | None:
    """Return the fingerprint (`SHA256:...`) of the key that has signed a value; None: no key has.

    Raises:
        ImportError: the library of the extra `ssh` is missing.
    """
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    match = _SIGNATURE.fullmatch(signature or "")
    if match is None:
        return None
    try:
        public: Any = load_ssh_public_key(match["key"].encode())
        if public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() != match["key"]:
            return None  # the key that was read must be the one that is named, to the letter
        public.verify(base64.b64decode(match["signed"], validate=True), _bytes_of(value), *_hashing(public))
        return fingerprint(base64.b64decode(match["blob"], validate=True))
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return None


def _hashing(public: object) -> tuple[Any, ...]:
    """Return what a key of this type needs besides the data."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
    from cryptography.hazmat.primitives.hashes import SHA512

    if isinstance(public, ed25519.Ed25519PublicKey):
        return ()
    if isinstance(public, ec.EllipticCurvePublicKey):
        return (ec.ECDSA(SHA512()),)
    if isinstance(public, rsa.RSAPublicKey):
        return padding.PKCS1v15(), SHA512()
    raise TypeError(f"a key of the type {type(public).__name__} does not sign here")


def _bytes_of(value: Value) -> bytes:
    """Return what is signed: the value without its signature, as JSON, after a name that nothing else signs."""
    content = {name: field for name, field in to_json_value(value).items() if name != "signature"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"vgpuctl {type(value).__name__} 1\0{text}".encode()
