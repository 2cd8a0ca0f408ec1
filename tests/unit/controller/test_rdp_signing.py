# SPDX-License-Identifier: Apache-2.0
"""Signed RDP files, verified by openssl; and certificates that do not sign."""

from __future__ import annotations

import base64
import struct
import subprocess
from pathlib import Path

import pytest

from tests.rdp_reader import read_rdp
from vgpuctl.controller.planning.rdp_file import rdp_lines, rdp_text
from vgpuctl.controller.rdp_signing import SCOPES, RdpSigner
from vgpuctl.errors import FileFailed


def make_certificate(directory: Path, name: str, kind: str = "rsa:2048") -> RdpSigner:
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    new = ["-newkey", kind] if kind.startswith("rsa") else ["-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{kind}"]
    words = ["openssl", "req", "-x509", *new, "-nodes", "-subj", f"/CN={name}", "-days", "2"]
    subprocess.run([*words, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    return RdpSigner(str(certificate), str(key))


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> RdpSigner:
    return make_certificate(tmp_path_factory.mktemp("rdp"), "desktops.example.org")


def verified(text: str, certificate: str, directory: Path) -> bool:
    """Return whether openssl finds the signature of a file right, over the lines that it names."""
    values = read_rdp(text)
    lines = {line.partition(":")[0]: line for line in text.splitlines()}
    keys = {scope: name for name, scope in SCOPES.items()}
    signed = [lines[keys[scope]] for scope in str(values["signscope"]).split(",")]
    content = "\r\n".join([*signed, lines["signscope"]]) + "\r\n\0"
    (directory / "content").write_bytes(content.encode("utf-16-le"))
    data = base64.b64decode(str(values["signature"]), validate=True)
    first, second, size = struct.unpack("<III", data[:12])
    assert (first, second, size) == (0x00010001, 1, len(data) - 12)
    (directory / "signature").write_bytes(data[12:])
    words = ["openssl", "cms", "-verify", "-binary", "-inform", "DER", "-in", directory / "signature", "-content",
             directory / "content", "-CAfile", certificate, "-purpose", "any", "-out", "/dev/null"]  # fmt: skip
    return subprocess.run(words, capture_output=True).returncode == 0


@pytest.mark.parametrize("kind", ["rsa:2048", "prime256v1"])
def test_openssl_verifies_what_is_signed_and_nothing_else(tmp_path: Path, kind: str) -> None:
    signer = make_certificate(tmp_path, "signer", kind)
    keys = {"gatewayhostname": "gw.example.org", "redirectclipboard": 1}
    text = rdp_text(signer.sign(rdp_lines(keys, "10.20.0.7", 3389, "ada")))
    assert verified(text, signer.certificate_file, tmp_path)
    assert "Full Address,Alternate Full Address,EnableCredSspSupport" in text
    assert "GatewayHostname" in text
    changed = text.replace("10.20.0.7", "203.0.113.6")
    assert not verified(changed, signer.certificate_file, tmp_path)
    assert not verified(
        text.replace("redirectclipboard:i:1", "redirectclipboard:i:0"), signer.certificate_file, tmp_path
    )


def test_a_chain_is_in_the_signature(signer: RdpSigner, tmp_path: Path) -> None:
    other = make_certificate(tmp_path, "issuer.example.org")
    chain = tmp_path / "chain.pem"
    chain.write_text(Path(signer.certificate_file).read_text() + Path(other.certificate_file).read_text())
    text = rdp_text(RdpSigner(str(chain), signer.key_file).sign(["full address:s:x"]))
    data = base64.b64decode(str(read_rdp(text)["signature"]))
    for name in (b"desktops.example.org", b"issuer.example.org"):
        assert name in data


def test_what_does_not_sign(signer: RdpSigner, tmp_path: Path) -> None:
    other, strange = make_certificate(tmp_path, "other"), make_certificate(tmp_path, "strange", "secp112r1")
    (tmp_path / "empty").write_text("nothing")
    broken = tmp_path / "broken"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for certificate, key, words in (
        (str(tmp_path / "none"), signer.key_file, "it cannot be read: No such file"),
        (signer.certificate_file, str(tmp_path), "it cannot be read: it is a directory"),
        (str(tmp_path / "empty"), signer.key_file, "it has no certificate in PEM"),
        (str(broken), signer.key_file, "a certificate in it cannot be read"),
        (signer.certificate_file, signer.certificate_file, "it has no private key in PEM"),
        (strange.certificate_file, strange.key_file, "cannot be read|no private key"),
        (signer.certificate_file, other.key_file, "its key is not that of the first certificate"),
    ):
        with pytest.raises(FileFailed, match=words) as caught:
            RdpSigner(certificate, key).check()
        assert "ls -l" in str(caught.value.hint)
