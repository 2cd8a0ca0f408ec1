# SPDX-License-Identifier: Apache-2.0
"""Signing in at an LDAP server: Debian's slapd, and servers that do not answer as one should."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import ldap.filter
import pytest
from ldap.controls.simple import ManageDSAITControl

from tests.controller.certificates import Authority
from tests.controller.directory_server import (
    GROUPS,
    PEOPLE,
    READER_DN,
    READER_PASSWORD,
    SUFFIX,
    DirectoryServer,
    free_port,
)
from vgpuctl.controller.sign_in.checks import check_ldap
from vgpuctl.controller.sign_in.ldap import Ldap
from vgpuctl.controller.sign_in.settings import LdapSettings, SignInSettings
from vgpuctl.controller.sign_in.signed_in import SignedIn, SignInRefused, SignInUnavailable
from vgpuctl.errors import FileFailed, Refused
from vgpuctl.value import replace

PASSWORD = "correct horse"
USER_FILTER = "(&(objectClass=inetOrgPerson)(uid={user}))"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vgpuctl-ldap-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def server(folder: Path, authority: Authority) -> Iterator[DirectoryServer]:
    certificate, key = authority.sign("server", ("localhost",))
    (folder / "slapd").mkdir()
    running = DirectoryServer(folder / "slapd", authority.path, *_readable(folder / "slapd", certificate, key))
    try:
        ada = running.add_person("ada", PASSWORD, displayName="Ada Lovelace")
        running.add_group("designers", ada)
        running.add_group("Café, (Nord)", ada)
        yield running
    finally:
        running.stop()


def _readable(directory: Path, *files: Path) -> Iterator[Path]:
    for file in files:
        copy = directory / file.name
        copy.write_bytes(file.read_bytes())
        yield copy


@pytest.fixture
def settings(server: DirectoryServer, tmp_path: Path) -> LdapSettings:
    """Those of a plain connection: the entry `reader` searches."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(f"{READER_PASSWORD}\n")
    return LdapSettings(
        server.url, SUFFIX, bind_dn=READER_DN, bind_password_file=str(secret), user_filter=USER_FILTER,
        name_attribute="uid",
    )  # fmt: skip


def _problem(settings: LdapSettings, user: str, password: str) -> tuple[str, object, str | None]:
    with pytest.raises(SignInRefused) as caught:
        Ldap(settings).sign_in(user, password)
    assert password == "" or password not in str(caught.value)
    return caught.value.message, caught.value.facts.get("problem"), caught.value.hint


def test_a_user_signs_in_with_the_groups_of_the_entry(settings: LdapSettings) -> None:
    person = Ldap(settings).sign_in("ada", PASSWORD)
    assert person == SignedIn("ada", person.groups, "Ada Lovelace")
    assert set(person.groups) == {"designers", "Café, (Nord)"}, "from memberOf, with what a DN escapes"


def test_anybody_may_search_where_no_account_is_configured(settings: LdapSettings) -> None:
    anonymous = replace(settings, bind_dn=None, bind_password_file=None)
    assert Ldap(anonymous).sign_in("ada", PASSWORD).name == "ada"


def test_the_name_is_the_entrys_however_the_user_types_it(settings: LdapSettings) -> None:
    """LDAP ignores case and spaces at the ends; two spellings must not be two persons."""
    assert [Ldap(settings).sign_in(typed, PASSWORD).name for typed in ("ADA", " ada ", "Ada")] == ["ada"] * 3


def test_wrong_password_and_unknown_user_are_one_error(settings: LdapSettings) -> None:
    wrong = _problem(settings, "ada", "incorrect pony")
    assert wrong == ("the user name or the password is wrong", "password", None)
    assert _problem(settings, "nobody", PASSWORD) == wrong


@pytest.mark.parametrize("password", ["", "\0", "\0correct horse", "correct horse\0", "x" * 1025, "\ud800"])
def test_some_passwords_are_refused_before_anything_is_sent(settings: LdapSettings, password: str) -> None:
    """A server takes a bind with an empty password as one of anybody, and says yes (RFC 4513, 5.1.2)."""
    nowhere = replace(settings, url=f"ldap://127.0.0.1:{free_port()}")
    assert _problem(nowhere, "ada", password)[1] == "password"


def test_an_empty_password_would_have_succeeded(server: DirectoryServer) -> None:
    """The test above would prove nothing on a server that refuses such binds."""
    ldap.initialize(server.url).simple_bind_s(f"cn=entry of ada,{PEOPLE}", "")


@pytest.mark.parametrize(
    "user",
    [
        "*",
        "a*",
        "ada)(uid=*",
        "ada)(|(uid=*",
        "ad\\61",
        "*)(objectClass=*",
        "{dn}",
        "(",
        "",
        " ",
        "a\nb",
        "a" * 129,
        "\ud800",
    ],
)
def test_no_text_of_a_user_changes_the_search(settings: LdapSettings, user: str) -> None:
    assert _problem(settings, user, PASSWORD)[1] == "password"


def test_two_entries_of_one_name_let_nobody_in(settings: LdapSettings, server: DirectoryServer) -> None:
    other = server.add_person("bob", "bob's", parent=GROUPS)
    first = server.add_person("bob", PASSWORD)
    try:
        text, problem, hint = _problem(settings, "bob", PASSWORD)
        assert (problem, "more than one user" in text, "user_filter" in str(hint)) == ("ambiguous", True, True)
    finally:
        server.delete(first)
        server.delete(other)


@pytest.mark.parametrize("uid", ["eve!", "a b", "\u202eada", "x" * 65, "-x"])
def test_a_name_that_the_fleet_cannot_use(settings: LdapSettings, server: DirectoryServer, uid: str) -> None:
    dn = server.add_person(uid, PASSWORD, employeeNumber="7")
    try:
        by_number = replace(settings, user_filter="(employeeNumber={user})")
        assert _problem(by_number, "7", PASSWORD)[1] == "name"
    finally:
        server.delete(dn)


def test_a_user_with_two_names_has_none(settings: LdapSettings, server: DirectoryServer) -> None:
    """Which one would be the person's in the fleet?"""
    dn = server.add_person("carl", PASSWORD)
    connection = server.admin()
    connection.modify_s(dn, [(ldap.MOD_ADD, "uid", [b"charles"])])
    connection.unbind_s()
    try:
        assert _problem(settings, "charles", PASSWORD)[1] == "name"
    finally:
        server.delete(dn)


def test_groups_are_searched_where_that_is_configured(settings: LdapSettings, server: DirectoryServer) -> None:
    ada = f"cn=entry of ada,{PEOPLE}"
    elsewhere = server.add_group("elsewhere", ada, parent=PEOPLE)
    try:
        searched = replace(settings, group_base=GROUPS, group_filter="(member={dn})")
        assert set(Ldap(searched).sign_in("ada", PASSWORD).groups) == {"designers", "Café, (Nord)"}
        everywhere = replace(settings, group_filter="(member={dn})")
        assert "elsewhere" in Ldap(everywhere).sign_in("ada", PASSWORD).groups
    finally:
        server.delete(elsewhere)


def test_a_dn_with_what_filters_escape_finds_its_groups(settings: LdapSettings, server: DirectoryServer) -> None:
    dn = server.add_person("dora(*)", PASSWORD, employeeNumber="8")
    group = server.add_group("brackets", dn)
    try:
        searched = replace(settings, user_filter="(employeeNumber={user})", name_attribute="employeeNumber")
        searched = replace(searched, group_base=GROUPS, group_filter="(member={dn})")
        assert Ldap(searched).sign_in("8", PASSWORD).groups == ("brackets",)
    finally:
        server.delete(group)
        server.delete(dn)


def test_of_more_than_2000_groups_the_rest_is_left_out(
    settings: LdapSettings, server: DirectoryServer, caplog: pytest.LogCaptureFixture
) -> None:
    dn = server.add_person("many", PASSWORD)
    base = f"ou=many,{SUFFIX}"
    server.add(base, objectClass="organizationalUnit", ou="many")
    connection = server.admin()
    for number in range(2003):
        entry = {"objectClass": [b"groupOfNames"], "cn": [b"g%d" % number], "member": [dn.encode()]}
        connection.add_s(f"cn=g{number},{base}", ldap.modlist.addModlist(entry))
    connection.unbind_s()
    searched = replace(settings, group_base=base, group_filter="(member={dn})")
    with caplog.at_level(logging.WARNING):
        person = Ldap(searched).sign_in("many", PASSWORD)
    assert len(person.groups) == len(set(person.groups)) == 2000
    assert person.warnings == ("of 2003 groups 3 are left out",)
    assert [record.getMessage() for record in caplog.records] == [f"many: {text}" for text in person.warnings]
    anonymous = Ldap(replace(searched, bind_dn=None, bind_password_file=None)).sign_in("many", PASSWORD)
    assert len(anonymous.groups) == 500, "OpenLDAP's limit for all pages of a search"
    assert "no more than 500 groups" in anonymous.warnings[0]


def test_ldaps_and_start_tls(settings: LdapSettings, server: DirectoryServer, authority: Authority) -> None:
    trusted = replace(settings, ca_file=str(authority.path))
    assert Ldap(replace(trusted, url=server.tls_url)).sign_in("ada", PASSWORD).name == "ada"
    assert Ldap(replace(trusted, url=server.start_tls_url, start_tls=True)).sign_in("ada", PASSWORD).name == "ada"


@pytest.mark.parametrize("start_tls", [False, True])
@pytest.mark.parametrize("wrong", ["authority", "host"])
def test_a_certificate_that_is_not_trusted(
    settings: LdapSettings, server: DirectoryServer, authority: Authority, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, start_tls: bool, wrong: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("LDAPTLS_REQCERT", "never")
    url = server.start_tls_url if start_tls else server.tls_url
    if wrong == "host":
        url = url.replace("localhost", "127.0.0.1")
    trusted = authority.path if wrong == "host" else Authority(tmp_path, "other").path
    with pytest.raises(SignInUnavailable, match=r"certificate of .* is not trusted") as caught:
        Ldap(replace(settings, url=url, ca_file=str(trusted), start_tls=start_tls)).sign_in("ada", PASSWORD)
    assert "ca_file" in str(caught.value.hint)


def test_a_file_without_certificates(settings: LdapSettings, server: DirectoryServer, tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("none")
    with pytest.raises(SignInUnavailable, match="no certificates"):
        Ldap(replace(settings, url=server.tls_url, ca_file=str(tmp_path / "ca"))).sign_in("ada", PASSWORD)


def test_a_server_that_is_down(settings: LdapSettings) -> None:
    with pytest.raises(SignInUnavailable, match="does not answer"):
        Ldap(replace(settings, url=f"ldap://127.0.0.1:{free_port()}")).sign_in("ada", PASSWORD)


@pytest.mark.parametrize("scheme", ["ldap", "ldaps"])
def test_a_server_that_never_answers(settings: LdapSettings, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(SignInUnavailable, match=r"did not answer within 0\.3 s"):
            Ldap(replace(settings, url=url), seconds=0.3).sign_in("ada", PASSWORD)


def test_a_server_that_is_none(settings: LdapSettings) -> None:
    with _Relay(None) as relay, pytest.raises(SignInUnavailable):
        Ldap(replace(settings, url=relay.url), seconds=2).sign_in("ada", PASSWORD)


def test_nothing_is_left_open(settings: LdapSettings, server: DirectoryServer, authority: Authority) -> None:
    directory = Ldap(replace(settings, url=server.tls_url, ca_file=str(authority.path)))
    directory.sign_in("ada", PASSWORD)
    before = _open_files()
    for _ in range(5):
        directory.sign_in("ada", PASSWORD)
        _problem(settings, "ada", "incorrect pony")
    assert _open_files() <= before


def _open_files() -> int:
    """Return how many files are open once the threads of closed connections have ended."""
    for thread in threading.enumerate():
        if thread.name == "ldap-tls":
            thread.join(10)
            assert not thread.is_alive()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"\x30", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x30\x84\x00\x00\x00\x10\x02\x01\x01\x78\x07\x0a\x01\x35",
        b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x35\x04\x00\x04\x00",
        b"\x30\x0c\x02\x01\x01\x78\x07\x0a\x01\x00\x04\x00\x04\x00" + b"more, in the clear",
    ],
    ids=["nothing", "half", "http", "long-refusal", "refusal", "surplus"],
)  # fmt: skip
def test_a_server_that_does_not_go_on_with_tls(settings: LdapSettings, answer: bytes) -> None:
    with _Relay(None, answer=answer) as relay, pytest.raises(SignInUnavailable, match="does not go on with TLS"):
        Ldap(replace(settings, url=relay.url, start_tls=True), seconds=2).sign_in("ada", PASSWORD)


def test_the_searching_account_is_refused(settings: LdapSettings, tmp_path: Path) -> None:
    secret = Path(str(settings.bind_password_file))
    secret.write_text("no-such-secret")
    with pytest.raises(SignInUnavailable, match="refuses the account that searches, cn=reader") as caught:
        Ldap(settings).sign_in("ada", PASSWORD)
    assert "no-such-secret" not in f"{caught.value!r}{caught.value.hint}{caught.value.facts}"


def test_an_account_without_a_password(settings: LdapSettings, server: DirectoryServer) -> None:
    nobody = f"ou=people,{SUFFIX}"
    with pytest.raises(SignInUnavailable, match="refuses the account that searches, ou=people"):
        Ldap(replace(settings, bind_dn=nobody)).sign_in("ada", PASSWORD)
    dn = f"cn=bare,{PEOPLE}"
    server.add(dn, objectClass="inetOrgPerson", sn="x", uid="bare")
    try:
        assert _problem(settings, "bare", PASSWORD)[1] == "password"
    finally:
        server.delete(dn)


def test_what_a_server_refuses_to_do(settings: LdapSettings) -> None:
    with pytest.raises(SignInUnavailable, match="a filter is wrong"):
        Ldap(replace(settings, user_filter="((uid={user})")).sign_in("ada", PASSWORD)
    with pytest.raises(SignInUnavailable, match="refuses to search"):
        Ldap(replace(settings, base_dn="not a DN")).sign_in("ada", PASSWORD)


def test_the_file_with_a_password(settings: LdapSettings) -> None:
    secret = Path(str(settings.bind_password_file))
    secret.chmod(0o640)
    with pytest.raises(Refused, match="mode 0640"):
        Ldap(settings).sign_in("ada", PASSWORD)
    secret.chmod(0o600)
    for content in (b"", b"\n", b"two\nlines", b"\xff\xfe", b"x" * 5000, b"a\0b"):
        secret.write_bytes(content)
        with pytest.raises(FileFailed) as caught:
            Ldap(settings).sign_in("ada", PASSWORD)
        assert "lines" not in str(caught.value).replace("one line of", "")
    secret.unlink()
    with pytest.raises(FileFailed, match="No such file"):
        Ldap(settings).sign_in("ada", PASSWORD)


def test_a_referral_is_not_followed(settings: LdapSettings) -> None:
    with pytest.raises(SignInUnavailable, match="refers to another server, which is not followed"):
        Ldap(replace(settings, base_dn="dc=elsewhere,dc=org")).sign_in("ada", PASSWORD)


@pytest.mark.parametrize("is_base", [False, True])
def test_no_other_server_is_asked(settings: LdapSettings, server: DirectoryServer, is_base: bool) -> None:
    """Neither if the server refers to one below the base, as Active Directory does, nor for the base itself."""
    moved = f"ou=moved,{SUFFIX}"
    with socket.create_server(("127.0.0.1", 0)) as other:
        target = f"ldap://127.0.0.1:{other.getsockname()[1]}/{SUFFIX}"
        server.add(moved, objectClass=["referral", "extensibleObject"], ou="moved", ref=target)
        try:
            if is_base:
                with pytest.raises(SignInUnavailable, match="refers to another server"):
                    Ldap(replace(settings, base_dn=moved), seconds=1).sign_in("ada", PASSWORD)
            else:
                assert Ldap(settings, seconds=1).sign_in("ada", PASSWORD).name == "ada"
                assert _problem(settings, "nobody", PASSWORD)[1] == "password"
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.accept()
        finally:
            connection = server.admin()
            connection.delete_ext_s(moved, serverctrls=[ManageDSAITControl()])
            connection.unbind_s()


def test_a_base_that_vanished(settings: LdapSettings) -> None:
    with pytest.raises(SignInUnavailable, match="has no entry ou=gone,dc=example,dc=org"):
        Ldap(replace(settings, base_dn=f"ou=gone,{SUFFIX}")).sign_in("ada", PASSWORD)
    searched = replace(settings, group_base=f"ou=gone,{SUFFIX}", group_filter="(member={dn})")
    with pytest.raises(SignInUnavailable, match="or ou=gone,dc=example,dc=org"):
        Ldap(searched).sign_in("ada", PASSWORD)


def test_a_user_who_vanishes_between_search_and_bind(settings: LdapSettings, server: DirectoryServer) -> None:
    dn = server.add_person("gone", PASSWORD)
    with _Relay(server.url, before_second=lambda: server.delete(dn)) as relay:
        assert _problem(replace(settings, url=relay.url), "gone", PASSWORD)[1] == "password"


def test_a_server_that_dies_between_search_and_bind(settings: LdapSettings, server: DirectoryServer) -> None:
    with _Relay(server.url, connections=1) as relay, pytest.raises(SignInUnavailable):
        Ldap(replace(settings, url=relay.url), seconds=2).sign_in("ada", PASSWORD)


def test_doctor(settings: LdapSettings, server: DirectoryServer) -> None:
    assert check_ldap(SignInSettings()) == ()
    assert check_ldap(SignInSettings(ldap=settings)) == ()
    tls_port = server.tls_url.partition("://")[2]
    for broken, text, fix in (
        (replace(settings, url=f"ldap://127.0.0.1:{free_port()}"), "does not answer", "nc -zv 127.0.0.1 "),
        (replace(settings, url=f"ldap://{tls_port}"), "ended the connection", "write ldaps://"),
        (replace(settings, base_dn=f"ou=gone,{SUFFIX}"), "has no entry", "base_dn"),
        (replace(settings, group_base=f"ou=gone,{SUFFIX}"), "has no entry", "group_base"),
        (replace(settings, bind_dn=f"cn=other,{SUFFIX}"), "refuses the account", "bind_dn"),
        (replace(settings, bind_password_file="/no/such/file"), "cannot be read", "ls -l"),
        (replace(settings, user_filter="(uid={user}"), "a filter is wrong", "user_filter"),
        (replace(settings, group_filter="(&(member={dn})"), "a filter is wrong", "group_filter"),
        (replace(settings, name_attribute="carLicense"), "has the attribute carLicense", "name_attribute"),
    ):
        (problem,) = check_ldap(SignInSettings(ldap=broken))
        assert problem.section == "ldap"
        assert text in problem.text
        assert fix in str(problem.fix), problem


class _Relay:
    """Passes connections on to a server; without one it answers with what is no LDAP.

    `before_second` is called when the second connection opens; more than `connections` are closed at once.
    """

    def __init__(
        self,
        target: str | None,
        before_second: object = None,
        connections: int = 99,
        answer: bytes = b"HTTP/1.1 400\r\n",
    ) -> None:
        self._answer = answer
        self._target, self._before, self._most = target, before_second, connections
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"ldap://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def _run(self) -> None:
        for number in range(100):
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self._target is None:
                client.recv(64)
                client.sendall(self._answer)
            if number >= self._most or self._target is None:
                client.close()
                continue
            if number == 1 and callable(self._before):
                self._before()
            port = int(self._target.rpartition(":")[2])
            server = socket.create_connection(("127.0.0.1", port))
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass
