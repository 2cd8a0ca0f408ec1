# SPDX-License-Identifier: Apache-2.0
"""Debian's slapd for tests: in a directory of its own, as an ordinary user, on loopback ports, with TLS."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import ldap
import ldap.modlist

SUFFIX = "dc=example,dc=org"
ROOT_DN, ROOT_PASSWORD = f"cn=root,{SUFFIX}", "root-secret"
READER_DN, READER_PASSWORD = f"cn=reader,{SUFFIX}", "reader-secret"
PEOPLE, GROUPS = f"ou=people,{SUFFIX}", f"ou=groups,{SUFFIX}"
CONFIGURATION = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
moduleload memberof
referral ldap://elsewhere.example.org
pidfile {directory}/slapd.pid
allow bind_anon_dn
TLSCACertificateFile {authority}
TLSCertificateFile {certificate}
TLSCertificateKeyFile {key}
TLSVerifyClient never
database mdb
suffix {suffix}
rootdn {root_dn}
rootpw {root_password}
directory {directory}/data
maxsize 104857600
dbnosync
overlay memberof
limits dn.exact="{reader}" size=unlimited
access to attrs=userPassword by anonymous auth by * none
access to * by * read
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class DirectoryServer:
    """A slapd with the entries of a small company."""

    def __init__(self, directory: Path, authority: Path, certificate: Path, key: Path) -> None:
        self._plain, self._tls = free_port(), free_port()
        self.url, self.tls_url = f"ldap://127.0.0.1:{self._plain}", f"ldaps://localhost:{self._tls}"
        self.start_tls_url = f"ldap://localhost:{self._plain}"
        (directory / "data").mkdir()
        configuration = directory / "slapd.conf"
        configuration.write_text(
            CONFIGURATION.format(
                directory=directory, authority=authority, certificate=certificate, key=key, suffix=SUFFIX,
                reader=READER_DN,
                root_dn=ROOT_DN, root_password=ROOT_PASSWORD,
            )
        )  # fmt: skip
        user = []
        if os.geteuid() == 0:
            user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=TERM"]
            subprocess.run(["chown", "-R", "nobody:nogroup", directory], check=True)
        urls = f"{self.url} ldaps://127.0.0.1:{self._tls}"
        self._process = subprocess.Popen(
            [*user, "/usr/sbin/slapd", "-f", configuration, "-h", urls, "-d", "0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/",
        )  # fmt: skip
        self._wait()
        self._fill()

    def admin(self) -> ldap.ldapobject.LDAPObject:
        """Return a connection that may change everything."""
        connection = ldap.initialize(self.url)
        connection.simple_bind_s(ROOT_DN, ROOT_PASSWORD)
        return connection

    def add(self, dn: str, **attributes: str | list[str]) -> None:
        """Add an entry."""
        values = {k: [v.encode() for v in ([one] if isinstance(one, str) else one)] for k, one in attributes.items()}
        connection = self.admin()
        connection.add_s(dn, ldap.modlist.addModlist(values))
        connection.unbind_s()

    def add_person(self, uid: str, password: str, parent: str = PEOPLE, **more: str | list[str]) -> str:
        """Add a person, and return the DN."""
        dn = f"cn=entry of {ldap.dn.escape_dn_chars(uid)},{parent}"
        attributes: dict[str, str | list[str]] = {"objectClass": "inetOrgPerson", "sn": "x", "uid": uid, **more}
        self.add(dn, userPassword=password, **attributes)
        return dn

    def add_group(self, name: str, *members: str, parent: str = GROUPS) -> str:
        """Add a group, and return the DN."""
        dn = f"cn={ldap.dn.escape_dn_chars(name)},{parent}"
        self.add(dn, objectClass="groupOfNames", cn=name, member=list(members))
        return dn

    def delete(self, dn: str) -> None:
        """Delete an entry."""
        connection = self.admin()
        connection.delete_s(dn)
        connection.unbind_s()

    def stop(self) -> None:
        """Stop it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _wait(self) -> None:
        for _ in range(600):
            try:
                self.admin().unbind_s()
                return
            except ldap.SERVER_DOWN:
                time.sleep(0.05)
            if self._process.poll() is not None:
                break
        self._process.kill()
        assert self._process.stderr is not None
        raise AssertionError(f"slapd does not answer: {self._process.stderr.read().decode()}")

    def _fill(self) -> None:
        self.add(SUFFIX, objectClass=["dcObject", "organization"], dc="example", o="Example")
        self.add(PEOPLE, objectClass="organizationalUnit", ou="people")
        self.add(GROUPS, objectClass="organizationalUnit", ou="groups")
        self.add(READER_DN, objectClass=["organizationalRole", "simpleSecurityObject"], userPassword=READER_PASSWORD)
