# SPDX-License-Identifier: Apache-2.0
"""Sign RDP files, so that a user's computer shows who made them instead of a warning.

Microsoft has published no description of the signature. What is done here is what rdpsign.exe does, as others have
found out and mstsc accepts (github.com/nfedera/rdpsign): a detached PKCS #7 signature without attributes of the signed
lines, in UTF-16, with 12 bytes before it.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.errors import FileFailed
from vgpuctl.regular_file import read_regular_file
from vgpuctl.value import Value

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

MAX_FILE_BYTES = 1 << 20
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_HEADER = struct.pack("<II", 0x00010001, 1)
SCOPES: Mapping[str, str] = {
    "full address": "Full Address",
    "alternate full address": "Alternate Full Address",
    "enablecredsspsupport": "EnableCredSspSupport",
    "autoreconnection enabled": "AutoReconnection Enabled",
    "gatewayhostname": "GatewayHostname",
    "gatewayusagemethod": "GatewayUsageMethod",
    "gatewayprofileusagemethod": "GatewayProfileUsageMethod",
    "gatewaycredentialssource": "GatewayCredentialsSource",
    "promptcredentialonce": "PromptCredentialOnce",
    "prompt for credentials": "Prompt For Credentials",
    "authentication level": "Authentication Level",
    "audiomode": "AudioMode",
    "redirectprinters": "RedirectPrinters",
    "redirectcomports": "RedirectCOMPorts",
    "redirectsmartcards": "RedirectSmartCards",
    "redirectclipboard": "RedirectClipboard",
    "devicestoredirect": "DevicesToRedirect",
    "drivestoredirect": "DrivesToRedirect",
    "kdcproxyname": "KDCProxyName",
}
"""The keys that a signature covers, in its order, and their names in it."""


class RdpSigner(Value):
    """A certificate and its key, PEM files: the signer's own certificate is the first one, others lead to a known one.

    They are read at each use, so that a new certificate needs no restart.
    """

    certificate_file: str
    key_file: str

    def sign(self, lines: Sequence[str]) -> list[str]:
        """Return the lines with their signature.

        Raises:
            FileFailed: a file cannot be read, or is not what it should be.
        """
        by_key = {line.partition(":")[0]: line for line in lines}
        signed = [name for name in SCOPES if name in by_key]
        scope = "signscope:s:" + ",".join(SCOPES[name] for name in signed)
        content = "\r\n".join([*(by_key[name] for name in signed), scope]) + "\r\n\0"
        signature = self._signature(content.encode("utf-16-le"))
        text = base64.b64encode(_HEADER + struct.pack("<I", len(signature)) + signature).decode()
        return [*lines, scope, f"signature:s:{text}"]

    def check(self) -> None:
        """Sign something.

        Raises:
            FileFailed: as `sign`.
        """
        self.sign(["full address:s:localhost"])

    def _signature(self, content: bytes) -> bytes:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding, pkcs7

        own, *others = self._certificates()
        builder = pkcs7.PKCS7SignatureBuilder().set_data(content).add_signer(own, self._key(own), hashes.SHA256())
        for certificate in others:
            builder = builder.add_certificate(certificate)
        options = [
            pkcs7.PKCS7Options.Binary,
            pkcs7.PKCS7Options.DetachedSignature,
            pkcs7.PKCS7Options.NoAttributes,
        ]
        return builder.sign(Encoding.DER, options)

    def _certificates(self) -> list[x509.Certificate]:
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm

        try:
            known = [
                x509.load_pem_x509_certificate(part) for part in _CERTIFICATE.findall(_read(self.certificate_file))
            ]
        except (ValueError, UnsupportedAlgorithm) as error:
            raise _wrong(self.certificate_file, f"a certificate in it cannot be read: {error}") from None
        if not known:
            raise _wrong(self.certificate_file, "it has no certificate in PEM")
        return known

    def _key(self, certificate: x509.Certificate) -> rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec, rsa
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(_read(self.key_file), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # its text could show parts of the key
            raise _wrong(self.key_file, "it has no private key in PEM without a password") from None
        if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
            raise _wrong(self.key_file, "its key is neither RSA nor of an elliptic curve")
        try:
            own = certificate.public_key()
        except (ValueError, UnsupportedAlgorithm) as error:
            raise _wrong(self.certificate_file, f"the key of its certificate cannot be read: {error}") from None
        if not isinstance(own, type(key.public_key())) or key.public_key().public_numbers() != own.public_numbers():
            raise _wrong(self.key_file, f"its key is not that of the first certificate in {self.certificate_file}")
        return key


def _read(path: str) -> bytes:
    try:
        return read_regular_file(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _wrong(path, f"it cannot be read: {reason}") from None


def _wrong(path: str, reason: str) -> FileFailed:
    return FileFailed(
        f"RDP files cannot be signed: {path}: {reason}",
        hint=f"openssl x509 -noout -subject -in {path}; ls -l {path}",
        path=path,
    )
