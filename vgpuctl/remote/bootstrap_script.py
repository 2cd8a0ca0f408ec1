# SPDX-License-Identifier: Apache-2.0
"""The program that installs vgpuctl's Debian package on a host. vgpuctl sends it there as text, and Python runs it.

So it imports only the standard library of Python 3.11 and nothing of vgpuctl. Its standard input is one line of JSON
(the request), then the package. It prints one document in vgpuctl's format.

A lock on a file that only root can open allows one run at a time: flock(2) needs no write permission, so any user could
hold a lock on a directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

COPY_PREFIX = ".vgpuctl-package-"
COPY_PARENT = "/var/tmp"  # noqa: S108 - in a new directory
AGENT_LIBRARIES = ("python3-starlette", "python3-uvicorn", "python3-wsproto")
"""The Debian package only recommends them; install-host --agent needs them."""
"""Where the package is copied to, into a directory that only root can read."""
_MAX_HOLDER_BYTES = 100
_MAX_ERROR_LINES = 8

Request = dict[str, Any]
Document = dict[str, Any]


class BootstrapRefused(Exception):
    """Why vgpuctl cannot be installed here: code and exit status are vgpuctl's (docs/reference/exit-codes.md)."""

    def __init__(self, code: str, status: int, message: str, hint: str | None = None, **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.hint = hint
        self.facts = facts
        self.left: list[str] = []


class SignalHandler:
    """Handles SIGINT and SIGTERM: forwards them to the running child, or else ends the reading of the package."""

    def __init__(self) -> None:
        self.count = 0
        self.is_reading = False
        self.child: subprocess.Popen[str] | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle one signal."""
        self.count += 1
        if self.child is not None:
            self.child.send_signal(signal.SIGINT)
        elif self.is_reading:
            raise KeyboardInterrupt

    def raise_if_signaled(self) -> None:
        """Raise KeyboardInterrupt if a signal was received."""
        if self.count:
            raise KeyboardInterrupt


def main(stream: BinaryIO, signals: SignalHandler) -> int:
    """Perform the request, print the result document, and return the exit status."""
    try:
        request = json.loads(stream.readline())
        document = {"probe": probe, "install": install}[request["act"]](request, stream, signals)
    except BootstrapRefused as exc:
        document = _failure(exc.code, exc.status, str(exc), exc.hint, exc.facts, exc.left)
    except KeyboardInterrupt:
        document = _failure("interrupted", 130, "stopped while vgpuctl was being installed here", None, {})
    except OSError as exc:
        hint = "free space there, and run the command again" if exc.errno == errno.ENOSPC else None
        facts = {"errno": exc.errno, "path": exc.filename}
        document = _failure("os-error", 1, f"{exc.filename}: {exc.strerror}", hint, facts)
    with contextlib.suppress(OSError):  # nobody may be reading
        sys.stdout.write(f"{json.dumps(document)}\n")
        sys.stdout.flush()
    return 0 if document["ok"] else int(document["error"]["exit_status"])


def probe(request: Request, stream: BinaryIO, stops: SignalHandler) -> Document:
    """Return the installed version and the steps of an installation; nothing is changed.

    Raises:
        BootstrapRefused: it could not be installed here.
    """
    installed_version = _read_installed(request, stops)
    _refuse_downgrade(request, installed_version, stops)
    present = installed_version == request["version"]
    steps = [] if present else _describe_steps(request)
    data = {"present": present, "was": installed_version, "steps": steps}
    return _document(ok=True, changed=False, data=data)


def install(request: Request, stream: BinaryIO, stops: SignalHandler) -> Document:
    """Install the package with what it depends on, and run its install-host.

    Raises:
        BootstrapRefused, OSError, KeyboardInterrupt: it failed.
    """
    with _exclusive_lock(request), tempfile.TemporaryDirectory(prefix=COPY_PREFIX, dir=COPY_PARENT) as directory:
        installed_version = _read_installed(request, stops)
        steps = _describe_steps(request)
        path = Path(directory) / os.path.basename(request["package"]["name"])
        _receive_package(request, stream, path, stops)
        for line in steps:
            _report_line(request, line)
        _run_apt(request, path, stops)
        document = _install_host(request, stops)
    if document["ok"]:
        document["changed"] = True
        document["data"]["steps"] = [*steps, *document["data"]["steps"]]
        document["data"]["brought"] = {"version": request["version"], "was": installed_version}
    return document


def _read_installed(request: Request, stops: SignalHandler) -> str | None:
    """Return the version of the installed package, None if there is none.

    Raises:
        BootstrapRefused: this host has no apt, or has a vgpuctl that the package did not bring.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-query") is None:
        hint = "install vgpuctl there with pipx, or with Ansible's role vgpuctl"
        raise BootstrapRefused("host-cannot", 6, "this host has no apt-get, and gets no .deb", hint, check="apt")
    command = shutil.which("vgpuctl")
    if command is not None and not command.startswith((f"{request['prefix']}/bin/", "/bin/")):
        hint = "remove it, or update it the way it was installed"
        raise BootstrapRefused(
            "unmanaged", 3, f"PATH has another vgpuctl before the package's: {command}", hint, path=command
        )
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "vgpuctl"]
    status, out, _ = _run(query, stops)
    stops.raise_if_signaled()  # an interrupted command does not prove that there is none
    words = out.split()
    return words[1] if status == 0 and words[:1] == ["installed"] else None


def _refuse_downgrade(request: Request, installed_version: str | None, stops: SignalHandler) -> None:
    """Raise BootstrapRefused if the installed package is newer, in dpkg's order of versions."""
    if installed_version is None:
        return
    status, _, _ = _run(["dpkg", "--compare-versions", installed_version, "gt", request["version"]], stops)
    stops.raise_if_signaled()
    if status == 0:
        message = (
            f"its vgpuctl {installed_version} is newer than {request['version']} of {request['package']['name']}: an"
            " older one may not understand what it recorded"
        )
        raise BootstrapRefused("refused", 3, message, "use a newer one", remote_version=installed_version)


def _describe_steps(request: Request) -> list[str]:
    package = request["package"]
    size = f"{-(-package['bytes'] // (1 << 20))} MiB"
    words = " ".join((package["name"], *_needed_libraries(request)))
    return [f"copy {package['name']} ({size})", f"apt-get install {words}"]


def _needed_libraries(request: Request) -> tuple[str, ...]:
    return AGENT_LIBRARIES if "--agent" in request["words"] else ()


def _run_apt(request: Request, path: Path, stops: SignalHandler) -> None:
    """Install the package, and check that its vgpuctl runs. apt ignores a Ctrl-C while dpkg works.

    Raises:
        BootstrapRefused: apt or the package failed.
    """
    apt = ["apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=60", "install",
           "--no-install-recommends", "--reinstall", str(path), *_needed_libraries(request)]  # fmt: skip
    stops.raise_if_signaled()
    status, out, err = _run(apt, stops, {**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    if status:
        lines = [line.strip() for line in f"{out}\n{err}".splitlines() if line.strip()][-_MAX_ERROR_LINES:]
        hint = "check there: dpkg --audit; apt-get -f install"
        raise BootstrapRefused("failed", 1, "apt-get could not install it", hint, lines=lines, exit_status=status)
    program = f"{request['prefix']}/bin/vgpuctl"
    expected = request["version"].rpartition("-")[0] or request["version"]
    status, out, err = _run([program, "--version"], stops)
    if status or out.split() != ["vgpuctl", expected]:
        output = (out + err).strip().splitlines()[-1:]
        raise BootstrapRefused("failed", 1, f"{program} is not {expected}", lines=output, exit_status=status)


@contextlib.contextmanager
def _exclusive_lock(request: Request) -> Iterator[None]:
    lock = os.open(request["lock"], os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(lock, _MAX_HOLDER_BYTES, 0).decode(errors="replace") or "another process"
            hint = "wait until it ends, and run the command again"
            raise BootstrapRefused("locked", 75, f"{holder} is installing vgpuctl", hint, path=request["lock"]) from exc
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(lock)


def _receive_package(request: Request, stream: BinaryIO, path: Path, stops: SignalHandler) -> None:
    """Read the package, check its size and checksum, and write it to a file."""
    package = request["package"]
    stops.raise_if_signaled()
    stops.is_reading = True
    try:
        content = stream.read(package["bytes"])
    finally:
        stops.is_reading = False
    if hashlib.sha256(content).hexdigest() != package["sha256"]:
        missing_bytes = package["bytes"] - len(content)
        message = f"{package['name']} did not arrive completely: {missing_bytes} bytes are missing"
        raise BootstrapRefused("failed", 1, message, "run the command again")
    try:
        path.write_bytes(content)
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, str(path)) from exc  # an error of write has no file name


def _install_host(request: Request, stops: SignalHandler) -> Document:
    """Run the package's install-host and return its document.

    Raises:
        BootstrapRefused: it printed none.
    """
    status, out, _ = _run([f"{request['prefix']}/bin/vgpuctl", *request["words"]], stops, to_stderr=True)
    try:
        document = json.loads(out)
        if document["ok"] or isinstance(document["error"]["undone"], list):
            return dict(document)
    except (ValueError, KeyError, TypeError):
        pass
    stops.raise_if_signaled()
    message = f"install-host of vgpuctl {request['version']} ended with {status} and no result"
    refusal = BootstrapRefused(
        "partly-applied", 5, message, "run the command again: it keeps what is in place and adds the rest"
    )
    refusal.left = [f"the files that install-host of vgpuctl {request['version']} may have installed"]
    raise refusal


def _run(
    command: Sequence[str], stops: SignalHandler, env: dict[str, str] | None = None, *, to_stderr: bool = False
) -> tuple[int, str, str]:
    """Run a program to its end and return its exit status, stdout and stderr; signals are forwarded to it."""
    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(  # noqa: S603 - a list of words, no shell
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=None if to_stderr else pipe, text=True,
            errors="replace", cwd="/", env=env,
        )  # fmt: skip
    except OSError as exc:
        return 127, "", f"{command[0]}: {exc.strerror}"
    stops.child = child
    if stops.count:
        child.send_signal(signal.SIGINT)
    try:
        out, err = child.communicate()
    finally:
        stops.child = None
    return child.returncode, out, err or ""


def _report_line(request: Request, line: str) -> None:
    if request["progress"]:
        with contextlib.suppress(OSError):  # the work continues even if nobody reads this
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def _document(**result: object) -> Document:
    return {"schema": "vgpuctl/1", "kind": "install-host", **result, "warnings": []}


def _failure(
    code: str, status: int, message: str, hint: str | None, facts: dict[str, Any], left: Sequence[str] = ()
) -> Document:
    error = {"code": code, "message": message, "hint": hint, "facts": facts, "exit_status": status,
             "undone": [], "left": list(left)}  # fmt: skip
    return _document(ok=False, changed=bool(left), error=error)


if __name__ == "__main__":
    stops_ = SignalHandler()
    for number_ in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number_, stops_.handle)
    sys.exit(main(sys.stdin.buffer, stops_))
