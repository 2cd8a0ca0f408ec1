# SPDX-License-Identifier: Apache-2.0
"""Signing in at Active Directory: Samba's domain controller, with the settings of docs/howto/sign-in.md."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controller.domain_controller import (
    BASE,
    LOCKED_AFTER,
    NEW_PASSWORD,
    PASSWORD,
    READER_DN,
    REALM,
    DomainController,
)
from tests.lab.build import build_directory
from vgpuctl.controller.sign_in.checks import check_ldap
from vgpuctl.controller.sign_in.ldap import Ldap
from vgpuctl.controller.sign_in.settings import LdapSettings, SignInSettings, parse_settings
from vgpuctl.controller.sign_in.signed_in import SignedIn, SignInRefused, SignInUnavailable
from vgpuctl.value import replace

pytestmark = pytest.mark.long
BY_NAME_OR_UPN = "(&(objectCategory=person)(objectClass=user)(|(sAMAccountName={user})(userPrincipalName={user})))"


@pytest.fixture(scope="module")
def directory() -> Iterator[DomainController]:
    with tempfile.TemporaryDirectory(prefix="vgpuctl-ad-") as name:
        running = DomainController(build_directory(), Path(name))
        try:
            yield running
        finally:
            running.stop()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(f"{PASSWORD}\n")
    return path


@pytest.fixture
def settings(directory: DomainController, secret: Path) -> LdapSettings:
    return _settings(directory, secret)


def _settings(directory: DomainController, secret: Path, **more: object) -> LdapSettings:
    """Return the settings of the how-to guide, and more of the file's fields."""
    fields = {
        "url": "ldaps://localhost",
        "ca_file": directory.ca_file,
        "bind_dn": READER_DN,
        "bind_password_file": str(secret),
        "base_dn": BASE,
        **more,
    }
    text = "ldap:\n" + "".join(f"  {name}: {value}\n" for name, value in fields.items())
    ldap = parse_settings(text, "sign-in.yaml").ldap
    assert ldap is not None
    return ldap


def _sign_in(directory: DomainController, settings: LdapSettings, user: str, password: str = PASSWORD) -> SignedIn:
    return directory.run(lambda: Ldap(settings).sign_in(user, password))


def test_a_user_signs_in_by_the_account_name(directory: DomainController, settings: LdapSettings) -> None:
    for typed in ("ada", "ADA"):
        assert _sign_in(directory, settings, typed) == SignedIn("ada", ("designers",), "ada")


def test_a_user_signs_in_by_the_principal_name(directory: DomainController, secret: Path) -> None:
    """The name is that of the account all the same: one person is not two."""
    settings = _settings(directory, secret, user_filter=BY_NAME_OR_UPN, name_attribute="sAMAccountName")
    for typed in (f"ada@{REALM}", f"Ada@{REALM.upper()}", "ada"):
        assert _sign_in(directory, settings, typed).name == "ada"


def test_groups_of_groups(directory: DomainController, secret: Path) -> None:
    nested = _settings(directory, secret, nested_groups="true")
    assert set(_sign_in(directory, nested, "ada").groups) == {"designers", "desktops"}
    elsewhere = _settings(directory, secret, nested_groups="true", group_base=f"ou=domain controllers,{BASE}")
    assert _sign_in(directory, elsewhere, "ada").groups == ()


@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("ada", "incorrect-pony", "wrong password"), ("disabled", PASSWORD, "account disabled"),
        ("changing", NEW_PASSWORD, "password must be changed"), ("expired", PASSWORD, "password expired"),
        ("ended", PASSWORD, "account expired"), ("ada", "", None), ("nobody", PASSWORD, None), ("DC1$", PASSWORD, None),
    ],
)  # fmt: skip
def test_who_is_not_let_in(
    directory: DomainController, settings: LdapSettings, caplog: pytest.LogCaptureFixture, user: str, password: str,
    reason: str | None,
) -> None:  # fmt: skip
    """All are one error; the log has the reason, where the server says one."""
    caplog.set_level(logging.INFO, "vgpuctl.controller.sign_in")
    with pytest.raises(SignInRefused, match="the user name or the password is wrong") as caught:
        _sign_in(directory, settings, user, password)
    assert caught.value.facts == {"problem": "password"}
    expected = [] if reason is None else [f"{user} is not let in by ldaps://localhost ({reason})"]
    assert [record.getMessage() for record in caplog.records] == expected


def test_an_account_that_is_locked(
    directory: DomainController, settings: LdapSettings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vgpuctl.controller.sign_in")
    assert _sign_in(directory, settings, "locked").name == "locked"
    for _ in range(LOCKED_AFTER):
        with pytest.raises(SignInRefused):
            _sign_in(directory, settings, "locked", "incorrect-pony")
    with pytest.raises(SignInRefused):
        _sign_in(directory, settings, "locked")
    assert caplog.messages[-1].endswith("(account locked)")


def test_only_with_tls_and_its_certificate(directory: DomainController, settings: LdapSettings) -> None:
    start_tls = replace(settings, url="ldap://localhost", start_tls=True)
    assert _sign_in(directory, start_tls, "ada").name == "ada"
    for changed, text in (
        (replace(settings, url="ldap://localhost"), "takes passwords with TLS alone"),
        (replace(settings, ca_file=None), "unable to get local issuer certificate"),
        (replace(settings, url="ldaps://127.0.0.1"), "certificate is not valid for '127.0.0.1'"),
    ):
        with pytest.raises(SignInUnavailable, match=text):
            _sign_in(directory, changed, "ada")


def test_doctor_says_what_is_wrong(directory: DomainController, settings: LdapSettings) -> None:
    assert directory.run(lambda: check_ldap(SignInSettings(ldap=settings))) == ()
    for changed, text in (
        (replace(settings, bind_dn=f"cn=disabled,cn=users,{BASE}"), r"refuses the account that searches.*disabled\)"),
        (replace(settings, bind_dn=None, bind_password_file=None), "refuses to search"),
        (replace(settings, base_dn="dc=other,dc=org"), "has no entry dc=other,dc=org"),
    ):
        (problem,) = directory.run(lambda changed=changed: check_ldap(SignInSettings(ldap=changed)))
        assert problem.fix is not None
        with pytest.raises(SignInUnavailable, match=text):
            _sign_in(directory, changed, "ada")
