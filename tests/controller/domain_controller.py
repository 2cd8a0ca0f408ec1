# SPDX-License-Identifier: Apache-2.0
"""Samba as a domain controller of Active Directory, for tests: in a Debian tree and a network of its own.

Its tree is read-only in effect: what it writes is in memory, and ends with it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.controller.certificates import Authority
from tests.namespaces import expect, unshare

REALM, BASE = "office.example.org", "dc=office,dc=example,dc=org"
PASSWORD, NEW_PASSWORD = "Correct-horse-27", "Correct-horse-28"
READER_DN = f"cn=reader,cn=users,{BASE}"
LOCKED_AFTER = 3
_NEW_NETWORK = 0x40000000
Result = TypeVar("Result")

START = """set -e
ip link set lo up
mount --bind "$2" "$1/mnt"
mount -t tmpfs none "$1/srv"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
echo ready
exec chroot "$1" bash -c "$3" > "$2/log" 2>&1
"""
"""Arguments: the tree, a directory with the certificates, and DIRECTORY."""
DIRECTORY = f"""set -ex
samba-tool domain provision --quiet --realm={REALM.upper()} --domain=OFFICE --adminpass={PASSWORD} --server-role=dc \\
    --dns-backend=NONE --host-name=dc1 --host-ip=127.0.0.1 --targetdir=/srv \\
    --option='tls certfile = /mnt/dc1.pem' --option='tls keyfile = /mnt/dc1.key' \\
    --option='tls cafile = /mnt/authority.pem'
set -- --configfile=/srv/etc/smb.conf
for user in reader ada disabled changing ended expired locked; do samba-tool user add $user {PASSWORD} "$@"; done
samba-tool user disable disabled "$@"
samba-tool user setpassword changing --newpassword={NEW_PASSWORD} --must-change-at-next-login "$@"
samba-tool user setexpiry ended --days=0 "$@"
for group in designers desktops others; do samba-tool group add $group "$@"; done
samba-tool group addmembers designers ada "$@"
samba-tool group addmembers desktops designers "$@"
samba-tool domain passwordsettings set --account-lockout-threshold={LOCKED_AFTER} "$@"
samba-tool domain passwordsettings pso create short 1 --min-pwd-age=0 --max-pwd-age=1 "$@"
python3 - <<'end'
import ldb
from samba.samdb import SamDB
from samba.auth import system_session
from samba.param import LoadParm
settings = LoadParm("/srv/etc/smb.conf")
database = SamDB("/srv/private/sam.ldb", session_info=system_session(), lp=settings)
change = ldb.Message(ldb.Dn(database, "CN=short,CN=Password Settings Container,CN=System,{BASE}"))
change["age"] = ldb.MessageElement("-10000000", ldb.FLAG_MOD_REPLACE, "msDS-MaximumPasswordAge")  # 1 second
database.modify(change)
end
samba-tool domain passwordsettings pso apply short expired "$@"
exec samba --interactive --debug-stdout --model=single "$@"
"""


class DomainController:
    """The domain controller, at localhost of its network, with the entries of a small company.

    `ca_file`: the authority of its certificate.
    """

    def __init__(self, tree: Path, directory: Path) -> None:
        authority = Authority(directory)
        authority.sign("dc1", ("localhost", f"dc1.{REALM}"))[1].chmod(0o600)
        self.ca_file = str(authority.path)
        self._log = directory / "log"
        words = unshare("--net", "--uts", "--pid", "--fork", "--kill-child")
        with (directory / "errors").open("w+") as errors:
            self._process = subprocess.Popen(
                [*words, "bash", "-c", START, "bash", tree, directory, DIRECTORY],
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
            expect(self._process, "ready", errors)
        self._descriptor = os.open(f"/proc/{self._process.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._inside = ThreadPoolExecutor(1, initializer=self._enter)
        self.run(self._wait)

    def run(self, act: Callable[[], Result]) -> Result:
        """Return what is done in its network."""
        return self._inside.submit(act).result()

    def stop(self) -> None:
        """End it with all of its processes."""
        self._inside.shutdown()
        os.close(self._descriptor)
        with self._process:
            self._process.kill()

    def _enter(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        if library.setns(self._descriptor, _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "setns")

    def _wait(self) -> None:
        end = time.monotonic() + 300
        while True:
            try:
                socket.create_connection(("localhost", 636)).close()
                return
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < end, self._log.read_text()
                time.sleep(0.2)
