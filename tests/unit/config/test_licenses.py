# SPDX-License-Identifier: Apache-2.0
"""The folder of a license: what is in it is read, or refused without being shown."""

from __future__ import annotations

import pytest

from tests.licenses import CERTIFICATE, MARKER, token_text
from vgpuctl.config.licenses import LicenseFiles, parse_license
from vgpuctl.model.license import License

TOKEN = token_text(exp=1_800_000_000)


def parse(**files: str) -> License:
    return parse_license(LicenseFiles("cad", {name.replace("_", "."): text for name, text in files.items()}))


def test_a_token_alone_is_a_license_for_vgpus() -> None:
    assert parse(a_tok=f"\n{TOKEN}\n") == License("cad", TOKEN, expiry=1_800_000_000)
    assert MARKER not in f"{parse(a_tok=TOKEN)}{LicenseFiles('cad', {'a.tok': TOKEN})}"


def test_of_several_tokens_the_one_that_expires_last_counts() -> None:
    """The names of NVIDIA's tokens have dates in them: a new one does not take the place of the old one."""
    assert parse(a_tok=token_text(exp=3), b_tok=token_text(exp=2)).expiry == 3
    assert parse(a_tok=token_text(exp=3), b_tok=token_text()).expiry is None


@pytest.mark.parametrize(("text", "feature"), [("1", 1), ("2\n", 2), (" 4 ", 4)])
def test_the_kind_of_license_is_a_number(text: str, feature: int) -> None:
    assert parse(a_tok=TOKEN, feature=text).feature == feature


def test_only_the_certificates_go_to_guests() -> None:
    chain = f"subject=CN=dls\n{CERTIFICATE}\r\nEND\n{CERTIFICATE}\n"
    assert parse(a_tok=TOKEN, ca_pem=chain).certificates == (CERTIFICATE, CERTIFICATE)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "/etc/vgpuctl/licenses/cad has no token, a file *.tok"),
        ({"a_tok": TOKEN, "b_tok": MARKER}, "/etc/vgpuctl/licenses/cad/b.tok: it is no JSON Web Token"),
        ({"a_tok": MARKER}, "/etc/vgpuctl/licenses/cad/a.tok: it is no JSON Web Token"),
        ({"a_tok": f"{TOKEN}\nEND\nreboot"}, "/etc/vgpuctl/licenses/cad/a.tok: it is no JSON Web Token"),
        ({"a_tok": TOKEN, "ca_crt": "x"}, "/etc/vgpuctl/licenses/cad/ca.crt is neither a token"),
        ({"a_tok": TOKEN, "ca_pem": MARKER}, "/etc/vgpuctl/licenses/cad/ca.pem has no certificate in PEM"),
        (
            {"a_tok": TOKEN, "ca_pem": f"{CERTIFICATE}\n-----BEGIN PRIVATE KEY-----"},
            "/etc/vgpuctl/licenses/cad/ca.pem has a private key, which guests must not get",
        ),
        (
            {"a_tok": TOKEN, "feature": MARKER},
            "/etc/vgpuctl/licenses/cad/feature is not one of 1 (vGPU), 2 (RTX Virtual Workstation), 4 (",
        ),
    ],
)
def test_another_folder_is_refused_without_being_shown(files: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        parse(**files)
    assert str(caught.value).startswith(problem)
    assert MARKER not in str(caught.value)
    assert caught.value.__context__ is None
