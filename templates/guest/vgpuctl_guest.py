#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vgpuctl-guest: says who is logged on in this VM and what its GPU runs, and carries out a few requests of the host.

    vgpuctl-guest install    # as root, in the guest: a systemd service from now on
    vgpuctl-guest run        # what the service does
    vgpuctl-guest clean      # before an image is made of this guest: removes tokens, and who may log on

It speaks through the virtio port org.vgpuctl.guest.0, which vgpuctl gives each VM: one JSON object per line, at most
4 KiB. The host cannot run commands through it; besides report it has six requests: message, put-token, allow-logon,
make-account, set-password and shutdown-in. It needs Python 3.9 and systemd, and no other package.

Size: it is copied into guests as one file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pwd
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

VERSION = "2"
PORT = "/dev/virtio-ports/org.vgpuctl.guest.0"
PROGRAM = "/usr/local/sbin/vgpuctl-guest"
UNIT = "/etc/systemd/system/vgpuctl-guest.service"
UNIT_TEXT = f"""[Unit]
Description=Reports log-ons and the GPU's software to the host of this VM

[Service]
ExecStart={PROGRAM} run
Restart=always
RestartSec=10

[Install]
WantedBy=multi-user.target
"""
MAX_LINE_BYTES = 4096
MAX_USERS = 32
MAX_ERROR_CHARACTERS = 300
MAX_NAME_CHARACTERS = 64
MAX_TOKEN_BYTES = 64 << 10
LOOK_SECONDS = 5.0
SLOW_SECONDS = 30.0
PORT_SECONDS = 10.0
REPORT_SECONDS = 60.0
"""A report is sent after each change, and at least this often: the host takes a silent helper for a dead one."""
UNCONNECTED_SECONDS = 1.0
COMMAND_SECONDS = 8.0
INSTALL_SECONDS = 90.0
"""Nobody waits for an answer then, and systemd of a guest that boots is slow."""
TOKEN_DIRECTORY = "etc/nvidia/ClientConfigToken"  # noqa: S105 - a directory
TOKEN_NAME = "client_configuration_token_vgpuctl.tok"  # noqa: S105 - a file's name
ACCESS_FILE = "etc/security/access.d/90-vgpuctl.conf"
ACCOUNT_FILE = "var/lib/vgpuctl-guest/account"
"""The name of the account that make-account made: set-password is for no other one."""
ONCE_FILE = "var/lib/vgpuctl-guest/one-time-password"
ONCE_SECONDS = 3600.0
XRDP_SERVICE = "etc/pam.d/xrdp-sesman"
IMAGE_SECRETS = (
    f"{TOKEN_DIRECTORY}/*.tok",
    "etc/vgpuctl/join.yaml",
    "etc/rancher/k3s/config.yaml.d/50-vgpuctl-join.yaml",
    ACCESS_FILE,
    ACCOUNT_FILE,
    ONCE_FILE,
    "var/lib/cloud/instances/*/*-data.txt*",
    "var/lib/cloud/instances/*/scripts/**/*",
    "var/lib/cloud/instances/*/boothooks/**/*",
    "var/lib/cloud/instances/*/obj.pkl",
    "var/lib/cloud/seed/**/*",
)
"""What no guest made of this one's image may get: tokens, and cloud-init's copies of what had them."""
PAM_MODULES = tuple(f"{lib}/security/pam_access.so" for lib in ("lib*", "lib/*", "usr/lib*", "usr/lib/*"))
NVIDIA_VENDOR = b"\xde\x10"
VENDOR_CAPABILITY = 0x09
LOGON_SERVICES = ("sshd", "login", "gdm-password", "lightdm", "sddm", "xrdp-sesman")
"""The PAM services through which people log on; others, such as cron's, say nothing about log-ons."""
OTHER_RULES = ("+:gdm Debian-gdm lightdm sddm:ALL", "+:ALL:cron crond atd systemd-user")
"""Greeters, and services that work for users without a log-on."""
MAX_DEPTH = 5
LOGON_GROUP = "vgpuctl-logon"
"""Members of this group of the guest may always log on, besides root."""
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}")
_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PASSWORD = re.compile(r"[A-Za-z0-9](?:-?[A-Za-z0-9]){11,63}")
_PAM_WORDS = ("ALL", "LOCAL", "EXCEPT")
"""Words that pam_access takes for more than a user."""
_VERSION = re.compile(rb"[0-9][0-9.]{0,19}")
_BRANCH = re.compile(rb"[A-Za-z0-9_.-]{1,20}")
_LISTED_CLASSES = ("user", "user-early", "user-light")
_ENDED_STATE = "closing"


class RequestRefused(Exception):
    """The request cannot be carried out; the text goes to the host."""


Run = Callable[..., str]


def run_command(words: Sequence[str], stdin: str | None = None, seconds: float = COMMAND_SECONDS) -> str:
    """Run a program and return its output.

    Raises:
        RequestRefused: it is missing, failed, or did not end in time.
    """
    try:
        result = subprocess.run(  # noqa: S603 - no shell, and the words are checked
            list(words),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestRefused(f"{words[0]}: {error}") from error
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        raise RequestRefused(f"{words[0]} failed: {lines[-1] if lines else f'exit status {result.returncode}'}")
    return result.stdout


class Guest:
    """This guest: what it reports, and what the host may ask of it. `root`: its file tree; `run`: runs programs."""

    def __init__(self, root: Path = Path("/"), run: Run = run_command) -> None:
        self.root = root
        self.run = run
        self._token_parts: list[str] = []
        self._token_digest: object = None
        self._slow: dict[str, Any] = {}
        self._slow_time = 0.0
        self._sessions_changed: float | None = None

    # ------------------------------------------------------------- reports

    def report(self) -> dict[str, Any]:
        """Return what the host gets: users, the guest's driver, the host's driver, and whether MPS runs."""
        version, branch = self.read_host_driver()
        return {
            "type": "report",
            "helper": VERSION,
            "driver": self._read_driver(),
            "host_driver": version,
            "host_branch": branch,
            **self._read_slow(),
        }

    def _read_slow(self) -> dict[str, Any]:
        """Return what takes programs or many files: it is read after each change of a session, and now and then."""
        try:
            changed: float | None = (self.root / "run/systemd/sessions").stat().st_mtime
        except OSError:
            changed = None
        now = time.monotonic()
        if not self._slow or changed != self._sessions_changed or now - self._slow_time >= SLOW_SECONDS:
            self._slow = {"users": self.read_users(), "mps": self.runs_program("nvidia-cuda-mps-control")}
            self.end_password()
            self._slow_time, self._sessions_changed = now, changed
        return self._slow

    def read_users(self) -> list[dict[str, Any]] | None:
        """Return the users who are logged on, by name; None if logind does not answer.

        A user whose session is closing has logged off. systemd-logind does not know whether the user of a remote
        desktop is connected, so nobody is `disconnected`.
        """
        sessions = self._read_sessions()
        if sessions is None:
            return None
        users: dict[str, int | None] = {}
        for session in sessions:
            name, idle = session["Name"][:MAX_NAME_CHARACTERS], _idle_seconds(session)
            known = users.get(name)
            users[name] = idle if name not in users or known is None or idle is None else min(known, idle)
        names = sorted(users)[:MAX_USERS]
        return [{"user": name, "state": "active", "idle_seconds": users[name]} for name in names]

    def _read_sessions(self) -> list[dict[str, str]] | None:
        """Return the sessions of users, as logind shows them; None if it does not answer."""
        try:
            rows = self.run(["loginctl", "list-sessions", "--no-legend", "--no-pager"], None).splitlines()
            ids = [row.split()[0] for row in rows if row.split()]
            text = self.run(["loginctl", "show-session", *ids], None) if ids else ""
        except RequestRefused:
            return None
        sessions = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in text.split("\n\n")]
        return [
            one
            for one in sessions
            if one.get("Name") and one.get("Class") in _LISTED_CLASSES and one.get("State") != _ENDED_STATE
        ]

    def read_host_driver(self) -> tuple[str | None, str | None]:
        """Return the version and the branch of the host's vGPU driver; None where no vGPU says so.

        A vGPU has a vendor-specific PCI capability with the mark "VF" and records of an id, a length and data; record 0
        has ten bytes for each of the two (NVIDIA/k8s-device-plugin, internal/vgpu).
        """
        for device in sorted((self.root / "sys/bus/pci/devices").glob("*")):
            try:
                config = (device / "config").read_bytes()[:4096]
            except OSError:
                continue
            if config[:2] == NVIDIA_VENDOR:
                versions = find_host_driver(config)
                if versions is not None:
                    return versions
        return None, None

    def runs_program(self, name: str) -> bool:
        """Return whether a program of this name runs; the kernel keeps 15 characters of it."""
        for process in (self.root / "proc").glob("[0-9]*"):
            try:
                if (process / "comm").read_text().strip() == name[:15]:
                    return True
            except OSError:
                continue
        return False

    def _read_driver(self) -> str | None:
        """Return the version of NVIDIA's driver, once it is loaded."""
        try:
            return _text((self.root / "sys/module/nvidia/version").read_bytes(), _VERSION)
        except OSError:
            return None

    # ------------------------------------------------------------ requests

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request of the host and return the answer."""
        verbs: dict[str, Callable[[dict[str, Any]], None]] = {
            "message": self.show_message,
            "put-token": self.put_token,
            "allow-logon": self.allow_logon,
            "make-account": self.make_account,
            "set-password": self.set_password,
            "shutdown-in": self.shut_down_in,
        }
        answer: dict[str, Any] = {"type": "answer", "id": request.get("id")}
        try:
            verb = verbs.get(str(request.get("verb")))
            if verb is None:
                raise RequestRefused(f"{request.get('verb')!a}: this helper, version {VERSION}, has no such request")
            verb(request)
            return {**answer, "ok": True}
        except RequestRefused as error:
            return {**answer, "ok": False, "error": str(error)[:MAX_ERROR_CHARACTERS]}
        except Exception as error:  # noqa: BLE001 - the helper goes on
            return {**answer, "ok": False, "error": f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]}

    def show_message(self, request: dict[str, Any]) -> None:
        """Show a text to everybody who is logged on, in terminals and on desktops."""
        text = _clean_text(request.get("text"))
        users = self.read_users()
        if users is None:
            raise RequestRefused("systemd-logind does not say who is logged on")
        if not users:
            raise RequestRefused("nobody is logged on")
        self.run(["wall"], f"{text}\n")  # as an argument it might name a file
        for user in users:
            self._notify(user["user"], text)

    def _notify(self, user: str, text: str) -> None:
        """Have a text shown on a user's desktop, if there is one, and do not wait: the desktop is the user's."""
        try:
            number = pwd.getpwnam(user).pw_uid
            bus = self.root / f"run/user/{number}/bus"
            if bus.exists():
                address = f"DBUS_SESSION_BUS_ADDRESS=unix:path={bus}"
                notify = ["notify-send", "--urgency=critical", "--", "Message from the administrator", text]
                self.run(
                    ["setsid", "--fork", "timeout", "5", "runuser", "-u", user, "--", "env", address, *notify], None
                )
        except (KeyError, RequestRefused):
            return  # no desktop, or one that shows no notifications: the terminals have it

    def put_token(self, request: dict[str, Any]) -> None:
        """Collect the parts of a license token; with the last one replace the token, and restart NVIDIA's service.

        `sha256`, of the whole token, is in each part: those of two requests at once never make one token.
        """
        part, parts, data, digest = (request.get(name) for name in ("part", "parts", "data", "sha256"))
        if not (isinstance(part, int) and isinstance(parts, int) and isinstance(data, str) and 1 <= part <= parts):
            raise RequestRefused("put-token needs part, parts and data")
        if part == 1:
            self._token_parts, self._token_digest = [], digest
        if part != len(self._token_parts) + 1 or digest != self._token_digest:
            self._token_parts = []
            raise RequestRefused(f"part {part} of the token came in the wrong order")
        self._token_parts.append(data)
        token = "".join(self._token_parts)
        if len(token) > MAX_TOKEN_BYTES or not re.fullmatch(r"[A-Za-z0-9_.=+/-]+", token):
            self._token_parts = []
            raise RequestRefused("this is no license token")
        if part < parts:
            return
        self._token_parts = []
        if hashlib.sha256(token.encode()).hexdigest() != digest:
            raise RequestRefused("the token has another sha256 than it should")
        directory = self.root / TOKEN_DIRECTORY
        _replace_file(directory / TOKEN_NAME, f"{token}\n", 0o600)
        for old in directory.glob("*.tok"):
            if old.name != TOKEN_NAME:
                old.unlink()
        try:
            self.run(["systemctl", "--no-block", "try-restart", "nvidia-gridd.service"], None)
        except RequestRefused as error:
            raise RequestRefused(f"the token is in place, but NVIDIA's service was not restarted: {error}") from error

    def allow_logon(self, request: dict[str, Any]) -> None:
        """Let one user log on, and besides only root and the members of LOGON_GROUP; null: everybody again.

        `nobody`, without `user`: only those. pam_access enforces it, if the guest's image turned that on.
        """
        user = request.get("user")
        if user is None and "user" in request:
            (self.root / ACCESS_FILE).unlink(missing_ok=True)
            return
        nobody = request.get("nobody") is True and "user" not in request
        if not nobody and (not isinstance(user, str) or not _USER.fullmatch(user) or user.upper() in _PAM_WORDS):
            raise RequestRefused("allow-logon needs the name of a user")
        if user is not None and "@" in user:
            raise RequestRefused(f"pam_access takes the end of {user} for a host: name the user without it")
        if user is not None:
            self._require_user(user)
        self._require_access()
        own = [] if user is None else [f"+:{user}:ALL"]
        rules = ("+:root:ALL", f"+:({LOGON_GROUP}):ALL", *OTHER_RULES, *own, "-:ALL:ALL")
        lines = ("# Written by vgpuctl-guest for the host's administrator.", *rules, "")
        _replace_file(self.root / ACCESS_FILE, "\n".join(lines), 0o644)

    def _require_access(self) -> None:
        """Refuse a guest where nothing would refuse other users."""
        services = self.root / "etc/pam.d"
        if not any(_uses_access(services, name) for name in LOGON_SERVICES):
            raise RequestRefused(
                f"none of {', '.join(LOGON_SERVICES)} in /etc/pam.d has a line 'account required pam_access.so', "
                "so nothing would refuse other users"
            )
        if not any(_reads_access_directory(module) for pattern in PAM_MODULES for module in self.root.glob(pattern)):
            raise RequestRefused("pam_access.so does not read /etc/security/access.d: it is of an older Linux-PAM")

    def make_account(self, request: dict[str, Any]) -> None:
        """Let only one user log on, with an account that is made for him; without a password nobody can yet.

        An account of the image is refused: its rights, and who knows its password, are not known here.
        """
        user = request.get("user")
        if not isinstance(user, str) or not _ACCOUNT.fullmatch(user) or user.upper() in _PAM_WORDS:
            raise RequestRefused("make-account needs the name of an account")
        self._require_access()
        if not self._has_user(user):
            _replace_file(self.root / ACCOUNT_FILE, f"{user}\n", 0o600)
            # without a group of its name: sudoers may name one that this guest does not have, such as Ubuntu's %admin
            self.run(["useradd", "--no-user-group", "--create-home", "--shell", self._shell(), user], None)
        elif self._made_account() != user:
            raise RequestRefused(f"this guest has an account {user} of its own")
        self.allow_logon({"user": user})

    def set_password(self, request: dict[str, Any]) -> None:
        """Give the account of make-account a password that is good for one log-on.

        sshd, login and GDM have a user change an expired password. xrdp shows no dialog for that, and refuses the
        user. So where xrdp is, the password is locked after the next log-on, or after an hour.
        """
        user, password = request.get("user"), request.get("password")
        if not isinstance(password, str) or not _PASSWORD.fullmatch(password):
            raise RequestRefused("set-password needs a password of 12 to 64 letters and digits")
        if not isinstance(user, str) or user != self._made_account() or not self._has_user(user):
            raise RequestRefused("set-password needs the name of the account that make-account made")
        once = (self.root / XRDP_SERVICE).exists()
        if once:
            ids = [session.get("Id") for session in self._read_sessions() or () if session["Name"] == user]
            state = {"user": user, "sessions": ids, "time": time.time()}
            _replace_file(self.root / ONCE_FILE, json.dumps(state), 0o600)
        else:
            (self.root / ONCE_FILE).unlink(missing_ok=True)
        try:
            self.run(["chpasswd"], f"{user}:{password}\n")  # never as an argument, which everybody could read
        except RequestRefused as error:
            raise RequestRefused(str(error).replace(password, "***")) from None
        if not once:
            self.run(["chage", "--lastday", "0", user], None)

    def end_password(self) -> None:
        """Lock a one-time password after its log-on, or after an hour; what fails is tried at the next look."""
        path = self.root / ONCE_FILE
        try:
            state = json.loads(path.read_text())
            user, known = str(state["user"]), list(state["sessions"])
            sessions = self._read_sessions() or ()
            is_used = any(one["Name"] == user and one.get("Id") not in known for one in sessions)
            is_over = is_used or not 0 <= time.time() - state["time"] < ONCE_SECONDS
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            user, is_over = self._made_account() or "", True
        if is_over:
            try:
                self.run(["usermod", "--lock", user], None)
            except RequestRefused:
                return
            path.unlink(missing_ok=True)

    def _made_account(self) -> str | None:
        """Return the account that make-account made; None: none."""
        try:
            return (self.root / ACCOUNT_FILE).read_text().strip() or None
        except OSError:
            return None

    def _shell(self) -> str:
        return "/bin/bash" if (self.root / "bin/bash").exists() else "/bin/sh"

    def _has_user(self, name: str) -> bool:
        try:
            self.run(["getent", "passwd", name], None)
        except RequestRefused:
            return False
        return True

    def _require_user(self, name: str) -> None:
        """Refuse a name that is no user's, or is also a group's: pam_access would let in its members."""
        if not self._has_user(name):
            raise RequestRefused(f"this guest has no user {name}")
        try:
            group = self.run(["getent", "group", name], None).strip().split(":")
        except RequestRefused:
            return
        others = {member for member in group[-1].split(",") if member} - {name}
        if len(group) == 4 and others:
            raise RequestRefused(f"{name} is also a group, with the members {', '.join(sorted(others))}")

    def shut_down_in(self, request: dict[str, Any]) -> None:
        """Shut the guest down in so many minutes, with a warning to its users; null: no more."""
        minutes = request.get("minutes")
        if minutes is None:
            self.run(["shutdown", "-c"], None)
            return
        if not isinstance(minutes, int) or isinstance(minutes, bool) or not 0 <= minutes <= 1440:
            raise RequestRefused("shutdown-in needs a number of minutes, 0 to 1440")
        text = request.get("text")
        self.run(["shutdown", "-h", "--", f"+{minutes}", *([] if text is None else [_clean_text(text)])], None)


def _idle_seconds(session: dict[str, str]) -> int | None:
    """Return for how long a session has been idle; 0: it is in use; None: logind does not say since when."""
    if session.get("IdleHint") != "yes":
        return 0
    since = session.get("IdleSinceHint", "")
    return max(0, int(time.time() - int(since) / 1e6)) if since.isdigit() and int(since) else None


def find_host_driver(config: bytes) -> tuple[str | None, str | None] | None:
    """Return the version and the branch in a vGPU's PCI configuration space; None if it has none."""
    offset, seen = config[0x34] if len(config) > 0x34 else 0, set()
    while offset >= 0x40 and offset + 3 <= len(config) and offset not in seen:
        seen.add(offset)
        identity, following, length = config[offset : offset + 3]
        body = config[offset + 3 : offset + length]
        if identity == VENDOR_CAPABILITY and body[:2] == b"VF":
            return _host_record(body[2:])
        offset = following
    return None


def _host_record(records: bytes) -> tuple[str | None, str | None] | None:
    while len(records) >= 2:
        number, length = records[:2]
        if number == 0:
            data = records[2 : 2 + length]
            return _text(data[:10], _VERSION), _text(data[10:20], _BRANCH)
        if length < 2:
            return None
        records = records[length:]
    return None


def _text(data: bytes, pattern: re.Pattern[bytes]) -> str | None:
    """Return a text that ends with NUL; None for one that is none: the host would take the whole report for wrong."""
    text = data.split(b"\0", 1)[0].strip()
    return text.decode("ascii") if pattern.fullmatch(text) else None


def _clean_text(text: object) -> str:
    """Return a text without control characters."""
    if not isinstance(text, str) or not text.strip():
        raise RequestRefused("a text is missing")
    return "".join(c if c.isprintable() else " " for c in text)[:1000]


def _uses_access(services: Path, name: str, depth: int = 0) -> bool:
    """Return whether a PAM service, or what it includes, has pam_access with its usual files for accounts."""
    try:
        lines = (services / name).read_text(errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        words = line.partition("#")[0].split()
        includes = words[:1] == ["@include"] or (words[:1] == ["account"] and words[1:2] in (["include"], ["substack"]))
        if includes and depth < MAX_DEPTH and _uses_access(services, words[-1], depth + 1):
            return True
        is_access = any(word.rpartition("/")[2] == "pam_access.so" for word in words)
        if is_access and words[0].lstrip("-") == "account" and not any(w.startswith("accessfile=") for w in words):
            return True
    return False


def _reads_access_directory(module: Path) -> bool:
    """Return whether this pam_access.so reads rules in files of their own, as it does since Linux-PAM 1.5."""
    try:
        return b"/access.d" in module.read_bytes()
    except OSError:
        return False


def _replace_file(path: Path, text: str, mode: int) -> None:
    """Replace a file in one step; its directory may be missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.vgpuctl")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    temporary.replace(path)


# ------------------------------------------------------------------ the port


class Port:
    """The open port, and the lines that come through it."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: of the open port, which does not block."""
        self.descriptor = descriptor
        self._input = b""
        self._skips = False
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """Wait for requests of the host and return them; none after so many seconds, or while no host is connected."""
        events = self._poll.poll(seconds * 1000)
        if not events:
            return []
        if not events[0][1] & select.POLLIN:
            time.sleep(min(seconds, UNCONNECTED_SECONDS))
            return []
        try:
            data = os.read(self.descriptor, MAX_LINE_BYTES)
        except BlockingIOError:
            return []
        if not data:
            time.sleep(min(seconds, UNCONNECTED_SECONDS))
        return self._split(data)

    def _split(self, data: bytes) -> list[dict[str, Any]]:
        *lines, self._input = (self._input + data).split(b"\n")
        if self._skips and lines:
            lines, self._skips = lines[1:], False
        if len(self._input) > MAX_LINE_BYTES or self._skips:
            self._input, self._skips = b"", True
        requests = []
        for line in lines:
            try:
                request = json.loads(line)
            except ValueError:
                continue
            if isinstance(request, dict) and len(line) <= MAX_LINE_BYTES:
                requests.append(request)
        return requests

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message to the host; return whether the host took it."""
        line = json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"
        users = message.get("users")
        if len(line) > MAX_LINE_BYTES and users:
            return self.send({**message, "users": users[: len(users) // 2]})
        while line:
            try:
                line = line[os.write(self.descriptor, line) :]
            except BlockingIOError:
                return False
        return True


def open_port(path: str) -> Port:
    """Open the port, as soon as this VM has it."""
    while not os.path.exists(path):
        time.sleep(PORT_SECONDS)
    return Port(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))


def serve(port: Port, guest: Guest, is_done: Callable[[], bool] = lambda: False) -> None:
    """Report changes, and carry out requests, until it is done."""
    sent: dict[str, Any] | None = None
    sent_time = looked = -REPORT_SECONDS
    report: dict[str, Any] = {}
    while not is_done():
        now = time.monotonic()
        if now - looked >= LOOK_SECONDS:
            report, looked = guest.report(), now
        if (_without_idle(report) != _without_idle(sent) or now - sent_time >= REPORT_SECONDS) and port.send(report):
            sent, sent_time = report, now
        for request in port.wait(LOOK_SECONDS):
            if request.get("verb") == "report":
                sent, looked = None, -REPORT_SECONDS
            else:
                port.send(guest.answer(request))


def _without_idle(report: dict[str, Any] | None) -> object:
    """Return what is a change: how long a user is idle is none."""
    if report is None:
        return None
    return {**report, "users": [user["user"] for user in report["users"] or []]}


def clean(root: Path = Path("/"), run: Run = run_command) -> list[str]:
    """Remove what must not be in an image of this guest; return the files, and free their blocks on the disk."""
    paths = {path for pattern in IMAGE_SECRETS for path in root.glob(pattern) if path.is_file() or path.is_symlink()}
    for path in paths:
        path.unlink()
    try:
        run(["cloud-init", "clean", "--logs", "--seed"], None)
    except (OSError, RequestRefused) as error:
        print(f"vgpuctl-guest: cloud-init was not cleaned: {error}", file=sys.stderr)
    run(["fstrim", "--all", "--verbose"], None)
    return sorted(str(path) for path in paths)


def uninstall() -> None:
    """Remove the service and this program."""
    run_command(["systemctl", "--quiet", "disable", "--now", "vgpuctl-guest.service"], seconds=INSTALL_SECONDS)
    Path(UNIT).unlink(missing_ok=True)
    Path(PROGRAM).unlink(missing_ok=True)
    run_command(["systemctl", "daemon-reload"], seconds=INSTALL_SECONDS)


def install(source: Path) -> None:
    """Make a systemd service of this program."""
    program = Path(PROGRAM)
    if source.resolve() != program:
        _replace_file(program, source.read_text(), 0o755)
    _replace_file(Path(UNIT), UNIT_TEXT, 0o644)
    run_command(["systemctl", "daemon-reload"], seconds=INSTALL_SECONDS)
    run_command(["systemctl", "--quiet", "enable", "vgpuctl-guest.service"], seconds=INSTALL_SECONDS)
    run_command(["systemctl", "--no-block", "restart", "vgpuctl-guest.service"], seconds=INSTALL_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        prog="vgpuctl-guest",
        description="Says who is logged on in this VM, and carries out a few requests of its host.",
    )
    parser.add_argument(
        "action",
        choices=("run", "install", "uninstall", "show", "clean"),
        help=f"install, as root: write {PROGRAM} and a systemd service that runs it, also to update it; uninstall: "
        "remove both; show: print once what the host gets; clean, as root: remove tokens, before an image "
        "is made of this guest; run: what the service does",
    )
    parser.add_argument("--port", default=PORT, help="the virtio port (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        if given.action == "install":
            install(Path(__file__))
        elif given.action == "uninstall":
            uninstall()
        elif given.action == "clean":
            print("\n".join([*(f"removed {path}" for path in clean()), "shut this guest down before it is an image"]))
        elif given.action == "show":
            print(json.dumps(Guest().report(), indent=2))
        else:
            serve(open_port(given.port), Guest())
    except (OSError, RequestRefused) as error:
        print(f"vgpuctl-guest: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
