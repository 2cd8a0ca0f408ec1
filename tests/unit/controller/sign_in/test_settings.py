# SPDX-License-Identifier: Apache-2.0
"""The file sign-in.yaml: what it takes, and what it refuses with the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_documents import blocks
from vgpuctl.controller.sign_in.settings import (
    AD_NESTED_FILTER,
    AD_USER_FILTER,
    LdapSettings,
    OidcSettings,
    SignInSettings,
    parse_settings,
    read_settings,
    secret_files,
)
from vgpuctl.controller.sign_in.signed_in import SignInRefused, person_of, server_text
from vgpuctl.errors import FileFailed, InvalidInput, Refused

HOW_TO = Path(__file__).resolve().parents[4] / "docs/howto/sign-in.md"
OIDC = (
    "oidc:\n  issuer: https://sso.example.org/realms/office\n  client_id: fleet\n  address: https://fleet.example.org\n"
)
LDAP = "ldap:\n  url: ldaps://dc1.example.org\n  base_dn: dc=example,dc=org\n"


def _refusal(text: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse_settings(text, "sign-in.yaml")
    assert "Traceback" not in caught.value.message
    return caught.value.message


def test_the_shortest_file_has_the_documented_defaults() -> None:
    assert parse_settings(OIDC + LDAP, "sign-in.yaml") == SignInSettings(
        OidcSettings("https://sso.example.org/realms/office", "fleet", "https://fleet.example.org"),
        LdapSettings("ldaps://dc1.example.org", "dc=example,dc=org", user_filter=AD_USER_FILTER),
    )


def test_each_file_in_the_how_to_page_is_read() -> None:
    texts = ["\n".join(block.lines) for block in blocks(HOW_TO.read_text()) if block.language == "yaml"]
    settings = [parse_settings(text, "sign-in.yaml") for text in texts]
    assert len(settings) >= 4
    assert any(one.oidc for one in settings)
    assert any(one.ldap and one.ldap.group_filter == AD_NESTED_FILTER for one in settings)


def test_groups_are_searched_below_the_base_unless_another_is_given() -> None:
    def groups(more: str) -> tuple[str | None, str | None]:
        ldap = parse_settings(f"{LDAP}  {more}\n", "sign-in.yaml").ldap
        assert ldap is not None
        return ldap.group_base, ldap.group_filter

    assert groups("start_tls: false") == (None, None)
    assert groups("group_base: ou=g,dc=example,dc=org") == ("ou=g,dc=example,dc=org", "(member={dn})")
    assert groups("group_filter: '(memberUid={user})'") == ("dc=example,dc=org", "(memberUid={user})")
    assert groups("nested_groups: true") == ("dc=example,dc=org", AD_NESTED_FILTER)


@pytest.mark.parametrize("text", ["", "{}", "null", "oidc: null", "[]", "x", "oidc: [1]", "ldap: 3"])
def test_a_file_without_a_way_to_sign_in(text: str) -> None:
    assert "sign-in.yaml:" in _refusal(text)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("issuer: http://sso.example.org", "in the clear"),
        ("issuer: ftp://sso.example.org", "not an https address"),
        ("issuer: https://ada:hunter2@sso.example.org", "neither user nor password"),
        ("issuer: https://sso.example.org/?realm=x", "has a query"),
        ("issuer: https://sso.example.org/#x", "not an https address"),
        ("issuer: https://", "not an address"),
        ("issuer: https://[::1", "not an address"),
        ("issuer: https://sso.example.org:99999", "not an address"),
        ('issuer: "https://sso.example.org/\\r\\nX: y"', "not an address"),
        ("issuer: https://sso.ex\u202eample.org", "not an address"),
        (f"issuer: https://sso.example.org/{'x' * 500}", "not an address"),
        ("issuer: 7", "not text"),
        ("client_id: ''", "visible characters"),
        ('client_id: "a\\0b"', "visible characters"),
        ("client_secret_file: hunter2", "absolute path"),
        ("client_secret: hunter2", "unknown field"),
        ("name_claim: sub", "no person knows"),
        ("name_claim: 'two words'", "not the name of a claim"),
        ("scopes: [profile]", "openid is missing"),
        ("scopes: []", "empty"),
        ("scopes: ['openid profile']", "not a scope"),
        ("ca_file: ca.pem", "absolute path"),
    ],
)
def test_what_an_issuer_must_not_be(line: str, expected: str) -> None:
    key = line.partition(":")[0]
    lines = [one for one in OIDC.splitlines() if not one.startswith(f"  {key}:")]
    message = _refusal("\n".join([*lines, f"  {line}"]))
    assert message.startswith(f"sign-in.yaml:{len(lines) + 1}:")
    assert expected in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("url: ldap://dc1.example.org", "in the clear"),
        ("url: ldapi:///", "not an address"),
        ("url: https://dc1.example.org", "not the address of a server"),
        ("url: ldaps://dc1.example.org/dc=example", "not the address of a server"),
        ("url: ldaps://dc1.example.org?x", "not the address of a server"),
        ("url: 'ldaps://a.example.org ldap://b.example.org'", "not an address"),
        ("url: ldaps://cn=x:hunter2@dc1.example.org", "neither user nor password"),
        ("start_tls: true", "TLS already"),
        ("start_tls: 'yes'", "not true or false"),
        ("base_dn: example", "not a DN"),
        ('base_dn: "dc=a\\u202e"', "visible characters"),
        ("bind_dn: cn=reader,dc=example,dc=org", "bind_password_file is missing"),
        ("bind_password_file: /etc/secret", "bind_dn is missing"),
        ("bind_password: hunter2", "unknown field"),
        ("user_filter: '(uid={user})'", "name_attribute"),
        ("user_filter: '(uid=ada)'", "has {user} in it"),
        ("user_filter: '(uid={dn})'", "has {user} in it"),
        ("user_filter: '(uid={user.__class__})'", "has {user} in it"),
        ("user_filter: '(uid={user}'", "parentheses"),
        ("user_filter: 'uid={user})('", "parentheses"),
        ("user_filter: '(uid={user})(a=b)'", "parentheses"),
        ("name_attribute: 'uid)(x=*'", "not the name of an attribute"),
        ("group_filter: '(cn=x)'", "has {dn} or {user} in it"),
        ("nested_groups: true\n  group_filter: '(member={dn})'", "omit this"),
    ],
)
def test_what_an_ldap_server_must_not_be(line: str, expected: str) -> None:
    key = line.partition(":")[0]
    lines = [one for one in LDAP.splitlines() if not one.startswith(f"  {key}:")]
    message = _refusal("\n".join([*lines, f"  {line}"]))
    assert message.startswith("sign-in.yaml")
    assert expected in message
    assert "hunter2" not in message


def test_plain_connections_are_for_this_machine_alone() -> None:
    for url in ("ldap://127.0.0.1:389", "ldap://[::1]", "ldap://localhost"):
        assert parse_settings(LDAP.replace("ldaps://dc1.example.org", url), "x").ldap is not None
    assert parse_settings(OIDC.replace("https://sso.example.org", "http://127.0.0.1:8080"), "x").oidc is not None
    for url in ("ldap://127.0.0.1.example.org", "ldap://10.0.0.1", "ldap://localhost.example.org"):
        assert "in the clear" in _refusal(LDAP.replace("ldaps://dc1.example.org", url))
    start_tls = LDAP.replace("ldaps://", "ldap://") + "  start_tls: true\n"
    assert parse_settings(start_tls, "x").ldap is not None


def test_all_problems_are_listed_at_once() -> None:
    message = _refusal("oidc: {issuer: x, more: 1}\nldap: {url: y}\nother: 1\n")
    for place in ("oidc.issuer", "oidc.more", "oidc.client_id", "ldap.url", "ldap.base_dn", "other"):
        assert place in message


def test_secrets_are_read_when_the_file_is(tmp_path: Path) -> None:
    secret, file = tmp_path / "secret", tmp_path / "sign-in.yaml"
    file.write_text(f"{OIDC}  client_secret_file: {secret}\n")
    with pytest.raises(FileFailed, match="No such file"):
        read_settings(str(file))
    secret.touch(0o600)
    secret.write_text("hunter2\n")
    settings = read_settings(str(file))
    assert secret_files(settings) == (str(secret),)
    assert "hunter2" not in repr(settings)
    secret.chmod(0o604)
    with pytest.raises(Refused, match="mode 0604") as caught:
        read_settings(str(file))
    assert caught.value.hint == f"chmod 600 {secret}"


@pytest.mark.parametrize("content", [b"\xff", b"x" * 70_000, None])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "sign-in.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(FileFailed, match=r"sign-in\.yaml cannot be read"):
        read_settings(str(file))


def test_certificates_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "sign-in.yaml").write_text(f"{LDAP}  ca_file: {tmp_path}/none.pem\n")
    with pytest.raises(FileFailed, match=r"none\.pem cannot be read"):
        read_settings(str(tmp_path / "sign-in.yaml"))


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "ada\n", "\u202eada", "<b>", '"', None, 7, ["ada"], {"a": 1}])
def test_names_that_the_fleet_cannot_use(name: object) -> None:
    with pytest.raises(SignInRefused, match="the claim: "):
        person_of(name, [], None, "the claim")


@pytest.mark.parametrize("shown", [None, "", "  ", 7, "x" * 201, "a\u202eb", "a\nb", "a\0"])
def test_a_name_for_people_that_is_unusable_is_the_name(shown: object) -> None:
    assert person_of("ada", [], shown, "x").shown == "ada"
    assert person_of("ada", [], "Ada Lövelace", "x").shown == "Ada Lövelace"


def test_groups_that_are_left_out() -> None:
    groups = ["designers", "", " ", "x" * 200, "y" * 201, "a\nb", "\u202e", 7, None, ["g"], "designers"]
    person = person_of("ada", groups, None, "x")
    assert person.groups == ("designers", "x" * 200)
    assert person.warnings == ("8 of 11 groups are left out: their names are not texts of 1 to 200 visible characters",)
    many = person_of("ada", [f"g{number}" for number in range(2500)], None, "x")
    assert (len(many.groups), many.groups[-1], many.warnings) == (2000, "g1999", ("of 2500 groups 500 are left out",))


@given(st.text(max_size=500))
def test_what_a_server_says_is_one_short_line(text: str) -> None:
    shown = server_text(text)
    assert len(shown) <= 201
    assert shown.removesuffix("…").isascii()
    assert shown.isprintable()
