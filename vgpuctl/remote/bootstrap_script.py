# SPDX-License-Identifier: Apache-2.0
"""The program that installs vgpuctl on a host. vgpuctl sends it there as text, and the host's Python runs it.

So it imports only the standard library of Python 3.11 and nothing of vgpuctl. Its standard input is one line of JSON
(the request), then the wheels in order, or the Debian package. It prints one document in vgpuctl's format.

Each installed vgpuctl has its own virtual environment: DIRECTORY-VERSION-xxxxxx. DIRECTORY is a link to the active
environment; the program replaces the link as its last step. An older environment stays while a file or a process
refers to it: a running command imports modules late. A lock on a file that only root can open allows one run at a
time: flock(2) needs no write permission, so any user could hold a lock on /opt.

Size: it is sent as one text.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import importlib.metadata
import importlib.util
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

MARKER = "brought-by-vgpuctl.json"
"""This file marks an environment that the program may remove; it holds version and digest of the wheelhouse."""
WHEELS_PREFIX = ".vgpuctl-wheels-"
REPLACED_SUFFIX = "-before"
"""The suffix of a replaced environment that was a directory, not a link."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""Both are from linux/fcntl.h and linux/fs.h."""
_CHUNK_BYTES = 1 << 20
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
    """Handles SIGINT and SIGTERM: forwards them to the running child, or else ends the reading of wheels."""

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
    undone: list[str] = []
    try:
        request = json.loads(stream.readline())
        actions = {
            "look": probe, "bring": install, "look-deb": probe_package, "bring-deb": install_package,
        }  # fmt: skip
        action = actions[request["act"]]
        document = action(request, stream, signals, undone)
    except BootstrapRefused as exc:
        document = _failure(exc.code, exc.status, str(exc), exc.hint, exc.facts, undone, exc.left)
    except KeyboardInterrupt:
        document = _failure("interrupted", 130, "stopped while vgpuctl was being installed here", None, {}, undone)
    except OSError as exc:
        hint = "free space there, and run the command again" if exc.errno == errno.ENOSPC else None
        facts = {"errno": exc.errno, "path": exc.filename}
        document = _failure("os-error", 1, f"{exc.filename}: {exc.strerror}", hint, facts, undone)
    with contextlib.suppress(OSError):  # nobody may be reading
        sys.stdout.write(f"{json.dumps(document)}\n")
        sys.stdout.flush()
    return 0 if document["ok"] else int(document["error"]["exit_status"])


def probe(request: Request, stream: BinaryIO, stops: SignalHandler, undone: list[str]) -> Document:
    """Return the installed vgpuctl and the steps of an installation; nothing is changed.

    Raises:
        BootstrapRefused: it could not be installed here.
    """
    installed_version, digest = _read_installed(request, stops)
    present = installed_version == request["version"] and digest in (None, request["digest"])
    if not present:
        _require_room(request)
    steps = [] if present else [*_describe_first_steps(request), *_describe_last_steps(request, installed_version)]
    return _success({"present": present, "was": installed_version, "steps": steps})


def install(request: Request, stream: BinaryIO, stops: SignalHandler, undone: list[str]) -> Document:
    """Create the environment, run install-host from it, and make it the active one.

    Raises:
        BootstrapRefused, OSError, KeyboardInterrupt: it failed; the old state is kept; `undone` lists what it undid.
    """
    os.umask(0o022)
    parent = Path(request["directory"]).parent
    with _exclusive_lock(request):
        for old_wheels in parent.glob(f"{WHEELS_PREFIX}*"):
            shutil.rmtree(old_wheels)
        for dangling in _unfinished_links(request):
            dangling.unlink()
        _remove_unused(request)
        installed_version, _ = _read_installed(request, stops)
        _require_room(request)
        first_steps, last_steps = _describe_first_steps(request), _describe_last_steps(request, installed_version)
        with tempfile.TemporaryDirectory(prefix=WHEELS_PREFIX, dir=parent) as temporary:  # only root can read it
            wheels = Path(temporary)
            _receive_wheels(request, stream, wheels, stops)
            _report_line(request, first_steps[0])
            document = _install_environment(request, wheels, first_steps, last_steps, stops, undone)
    if document["ok"]:
        document["changed"] = True
        document["data"]["steps"] = [*first_steps, *document["data"]["steps"], *last_steps]
        document["data"]["brought"] = {"version": request["version"], "was": installed_version}
    return document


def probe_package(request: Request, stream: BinaryIO, stops: SignalHandler, undone: list[str]) -> Document:
    """Return the installed Debian package and the steps of an installation; nothing is changed.

    Raises:
        BootstrapRefused: it could not be installed here.
    """
    installed_version = _read_package(request, stops)
    present = installed_version == request["version"]
    steps = [] if present else _describe_package_steps(request)
    return _success({"present": present, "was": installed_version, "steps": steps})


def install_package(request: Request, stream: BinaryIO, stops: SignalHandler, undone: list[str]) -> Document:
    """Install the Debian package with what it depends on, and remove the link and environments of a wheelhouse.

    Raises:
        BootstrapRefused, OSError, KeyboardInterrupt: it failed.
    """
    with _exclusive_lock(request), tempfile.TemporaryDirectory(prefix=WHEELS_PREFIX, dir="/var/tmp") as temporary:
        installed_version = _read_package(request, stops)
        steps = _describe_package_steps(request)
        _receive_wheels(request, stream, Path(temporary), stops)
        for line in steps:
            _report_line(request, line)
        _run_apt(request, str(Path(temporary) / request["wheels"][0]["name"]), stops)
        document = _install_host(request, Path(request["prefix"]), stops)
        warnings = _remove_own_environments(request) if document["ok"] else []
    if document["ok"]:
        document["changed"] = True
        document["warnings"] = [*document.get("warnings", []), *warnings]
        document["data"]["steps"] = [*steps, *document["data"]["steps"]]
        document["data"]["brought"] = {"version": request["version"], "was": installed_version}
    return document


def _read_package(request: Request, stops: SignalHandler) -> str | None:
    """Return the version of the installed Debian package, None if there is none.

    Raises:
        BootstrapRefused: this host has no apt, or a vgpuctl that neither the package nor a wheelhouse brought.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-query") is None:
        hint = "bring wheels instead: --wheelhouse DIR"
        raise BootstrapRefused("host-cannot", 6, "this host has no apt-get, and gets no .deb", hint, check="apt")
    command, directory = shutil.which("vgpuctl"), os.path.realpath(request["directory"])
    is_own = command is None or command.startswith((f"{request['prefix']}/bin/", "/bin/"))
    if not is_own and not os.path.realpath(str(command)).startswith(f"{directory}/"):
        hint = "remove it, or renew it in the way in which it came"
        raise BootstrapRefused(
            "unmanaged", 3, f"PATH has another vgpuctl before the package's: {command}", hint, path=command
        )
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "vgpuctl"]
    status, out, _ = _run(query, stops)
    stops.raise_if_signaled()
    words = out.split()
    return words[1] if status == 0 and words[:1] == ["installed"] else None


def _describe_package_steps(request: Request) -> list[str]:
    package, link = request["wheels"][0], request["link"]
    steps = [f"copy {package['name']} ({_mib(package['bytes'])})", f"apt-get install {package['name']}"]
    is_linked = os.path.islink(link) and os.readlink(link) == f"{request['directory']}/bin/vgpuctl"
    return [*steps, f"remove {link} and {request['directory']}, which a wheelhouse made"] if is_linked else steps


def _run_apt(request: Request, path: str, stops: SignalHandler) -> None:
    """Install the package, and check that its vgpuctl runs. apt ignores a Ctrl-C while dpkg works.

    Raises:
        BootstrapRefused: apt or the package failed.
    """
    apt = ["apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=60", "install",
           "--no-install-recommends", "--reinstall", path]  # fmt: skip
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


def _remove_own_environments(request: Request) -> list[str]:
    """Remove the link in PATH and the environments that a wheelhouse made: the package replaced them."""
    directory, link = Path(request["directory"]), Path(request["link"])
    with contextlib.suppress(OSError):
        if os.readlink(link) == f"{directory}/bin/vgpuctl":
            link.unlink()
        if directory.is_symlink():
            directory.unlink()
    return _remove_unused(request)


def _install_environment(
    request: Request,
    wheels: Path,
    first_steps: Sequence[str],
    last_steps: Sequence[str],
    stops: SignalHandler,
    undone: list[str],
) -> Document:
    directory = Path(request["directory"])
    environment = _create_directory(request, wheels)
    try:
        _install_wheels(request, environment, wheels, stops)
        environment.chmod(0o755)
        _report_line(request, first_steps[1])
        _require_idle(directory)  # pip is slow: a process may have started meanwhile
        document = _install_host(request, environment, stops)
        if document["ok"]:
            _activate(request, environment)
            for line in last_steps:
                _report_line(request, line)
    finally:
        is_active = _is_active(directory, environment)
        warnings = _remove_unused(request)
        if not is_active:
            undone += [] if environment.exists() else [f"create {environment}"]
    if is_active:
        document["warnings"] = [*document.get("warnings", []), *warnings]
    else:
        document["error"]["undone"] = [*document["error"]["undone"], *undone]
    return document


def _create_directory(request: Request, wheels: Path) -> Path:
    """Create the environment's directory. It gets its marker before its final name, so none is ever unmarked."""
    directory = Path(request["directory"])
    temporary = Path(tempfile.mkdtemp(prefix=f"{directory.name}-{request['version']}-", dir=wheels))
    _write_marker(temporary, request["version"], request["digest"])
    return temporary.rename(directory.with_name(temporary.name))


def _read_installed(request: Request, stops: SignalHandler) -> tuple[str | None, str | None]:
    """Return version and wheelhouse digest of the installed vgpuctl; None if it is missing or does not run.

    Raises:
        BootstrapRefused: a path of that name was not created by this program or the Ansible role.
    """
    directory, link = Path(request["directory"]), Path(request["link"])
    if os.path.lexists(directory) and not directory.is_symlink() and not (directory / "pyvenv.cfg").is_file():
        raise BootstrapRefused("unmanaged", 3, f"{directory} is not a Python environment", f"ls -la {directory}")
    command = shutil.which("vgpuctl")
    if command is not None and not os.path.realpath(command).startswith(f"{os.path.realpath(directory)}/"):
        hint = f"remove it, or update it the way it was installed: PATH has it before {directory}/bin"
        raise BootstrapRefused(
            "unmanaged",
            3,
            f"{command} is another vgpuctl, which this installation does not replace",
            hint,
            path=command,
        )
    if os.path.lexists(link) and not link.is_symlink():
        raise BootstrapRefused("unmanaged", 3, f"{link} is a file, not a link to a vgpuctl", f"file {link}")
    status, out, _ = _run([str(directory / "bin/vgpuctl"), "--version"], stops)
    stops.raise_if_signaled()  # an interrupted command does not prove that vgpuctl is broken
    words = out.split()
    version = words[1] if status == 0 and len(words) == 2 and words[0] == "vgpuctl" else None
    return version, _read_marker(directory).get("digest")


def _require_room(request: Request) -> None:
    """Raise BootstrapRefused if this host lacks a requirement; checked before anything is copied."""
    directory = Path(request["directory"])
    parent = directory.parent
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if sys.version_info[:2] < tuple(request["oldest_python"]):
        oldest = ".".join(str(number) for number in request["oldest_python"])
        message = f"{sys.executable} is Python {version}, and vgpuctl {request['version']} needs {oldest} or newer"
        raise BootstrapRefused(
            "host-cannot", 6, message, "use a wheelhouse with a vgpuctl for this Python", check="python"
        )
    if any(importlib.util.find_spec(name) is None for name in ("venv", "ensurepip")):
        hint = f"on that host: apt install python3-venv, or python{version}-venv"
        raise BootstrapRefused(
            "host-cannot", 6, f"{sys.executable} cannot create environments", hint, check="python3-venv"
        )
    if not request["has_libvirt"] and not any(importlib.metadata.distributions(name="libvirt-python")):
        hint = "on that host: apt install python3-libvirt, or dnf install python3-libvirt"
        message = f"{sys.executable} ({version}) has no libvirt module, and the wheelhouse has none"
        raise BootstrapRefused("host-cannot", 6, message, hint, check="python3-libvirt")
    filesystem = os.statvfs(parent)
    free = filesystem.f_bavail * filesystem.f_frsize
    if free < request["needs_bytes"]:
        message = f"{parent} has {_mib(free)} free, and installing vgpuctl needs {_mib(request['needs_bytes'])}"
        facts = {"free_bytes": free, "needs_bytes": request["needs_bytes"]}
        raise BootstrapRefused("host-cannot", 6, message, "free space there", check="space", **facts)
    _require_idle(directory)


def _require_idle(directory: Path) -> None:
    """Raise BootstrapRefused if a process runs from an environment that is no link: it would be replaced under it."""
    users = [] if directory.is_symlink() else _list_processes(directory)
    if users:
        hint = "wait until it ends: its modules would be replaced while it runs"
        raise BootstrapRefused("busy", 75, f"process {users[0]} runs from {directory}", hint, pids=users)


def _describe_first_steps(request: Request) -> list[str]:
    count, size = len(request["wheels"]), _mib(sum(wheel["bytes"] for wheel in request["wheels"]))
    return [
        f"copy {count} {'wheel' if count == 1 else 'wheels'} ({size})",
        f"create environment {request['directory']}-{request['version']}-* with {sys.executable}",
    ]


def _describe_last_steps(request: Request, installed_version: str | None) -> list[str]:
    directory, link = request["directory"], request["link"]
    line = (
        f"switch {directory} to vgpuctl {request['version']}{f' from {installed_version}' if installed_version else ''}"
    )
    is_linked = os.path.islink(link) and os.readlink(link) == f"{directory}/bin/vgpuctl"
    return [line] if is_linked else [f"link {link} to {directory}/bin/vgpuctl", line]


@contextlib.contextmanager
def _exclusive_lock(request: Request) -> Iterator[None]:
    lock = os.open(request["lock"], os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(lock, _CHUNK_BYTES, 0).decode(errors="replace") or "another process"
            message = f"{holder} is installing vgpuctl in {request['directory']}"
            raise BootstrapRefused(
                "locked", 75, message, "wait until it ends, and run the command again", path=request["lock"]
            ) from exc
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(lock)


def _receive_wheels(request: Request, stream: BinaryIO, wheels: Path, stops: SignalHandler) -> None:
    """Read the wheels and check the size and checksum of each."""
    stops.raise_if_signaled()
    stops.is_reading = True
    try:
        for wheel in request["wheels"]:
            missing_bytes, digest = _copy_bytes(stream, wheels / os.path.basename(wheel["name"]), int(wheel["bytes"]))
            if missing_bytes or digest != wheel["sha256"]:
                raise BootstrapRefused(
                    "failed",
                    1,
                    f"{wheel['name']} did not arrive completely: {missing_bytes} bytes are missing",
                    "run the command again",
                )
    finally:
        stops.is_reading = False


def _copy_bytes(stream: BinaryIO, path: Path, size: int) -> tuple[int, str]:
    """Copy `size` bytes to a new file; return how many are missing, and the checksum of those received."""
    digest = hashlib.sha256()
    try:
        with open(path, "xb") as file:
            while size and (chunk := stream.read(min(size, _CHUNK_BYTES))):
                digest.update(chunk)
                file.write(chunk)
                size -= len(chunk)
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, str(path)) from exc  # an error of write has no file name
    return size, digest.hexdigest()


def _install_wheels(request: Request, environment: Path, wheels: Path, stops: SignalHandler) -> None:
    """Create the environment and check that its vgpuctl runs. pip unpacks into the wheels' directory."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    env = {**inherited, "PIP_CONFIG_FILE": os.devnull, "TMPDIR": str(wheels)}
    python = str(environment / "bin/python")
    venv = [sys.executable, "-I", "-m", "venv", "--system-site-packages", str(environment)]
    pip = [python, "-I", "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(wheels), "--no-input",
           "--no-cache-dir", "--disable-pip-version-check", f"vgpuctl[host]=={request['version']}"]  # fmt: skip
    for words, what in ((venv, "create the environment"), (pip, f"install vgpuctl {request['version']} in it")):
        status, out, err = _run(words, stops, env)
        stops.raise_if_signaled()
        if status:
            lines = [line.strip() for line in f"{out}\n{err}".splitlines() if line.strip()][-_MAX_ERROR_LINES:]
            hint = f"the wheels must match Python {sys.version_info[0]}.{sys.version_info[1]} on {os.uname().machine}"
            raise BootstrapRefused(
                "failed", 1, f"{sys.executable} could not {what}", hint, lines=lines, exit_status=status
            )
    status, out, err = _run([str(environment / "bin/vgpuctl"), "--version"], stops)
    stops.raise_if_signaled()
    if status or out.split() != ["vgpuctl", request["version"]]:
        output = (out + err).strip().splitlines()[-1:]
        raise BootstrapRefused(
            "failed", 1, f"vgpuctl {request['version']} does not run here", lines=output, exit_status=status
        )


def _install_host(request: Request, environment: Path, stops: SignalHandler) -> Document:
    status, out, _ = _run([str(environment / "bin/vgpuctl"), *request["words"]], stops, to_stderr=True)
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


def _activate(request: Request, environment: Path) -> None:
    """Make this environment the active one. One that is not a link (from the Ansible role or a person) is moved aside.

    The link in PATH points to the active one through DIRECTORY, so it may be created first.
    """
    directory, link = Path(request["directory"]), Path(request["link"])
    target = f"{directory}/bin/vgpuctl"
    try:
        if not link.is_symlink() or os.readlink(link) != target:
            link.parent.mkdir(parents=True, exist_ok=True)
            _replace_link(link, target, link.with_name(f".{link.name}-{environment.name}"))
        _replace_link(directory, environment.name, directory.with_name(f"{environment.name}{REPLACED_SUFFIX}"))
    except OSError as exc:
        refusal = BootstrapRefused(
            "partly-applied", 5, f"{exc.filename}: {exc.strerror}", "fix this, and run the command again"
        )
        refusal.left = [f"the files that install-host of vgpuctl {request['version']} installed"]
        raise refusal from exc


def _replace_link(link: Path, target: str, new: Path) -> None:
    """Replace `link` atomically, by one system call: the name always exists.

    An environment that is not a link gets the name `new`, which the next run removes.
    """
    os.symlink(target, new)
    try:
        if link.is_dir() and not link.is_symlink():
            _write_marker(link, None, None)
            _exchange_names(new, link)
        else:
            os.replace(new, link)
    except OSError:
        new.unlink()
        raise


def _exchange_names(one: Path, other: Path) -> None:
    """Exchange two names: renameat2(2) with RENAME_EXCHANGE, in glibc since 2.28."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    arguments = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if renameat2 is None or renameat2(*arguments):
        number = ctypes.get_errno() if renameat2 is not None else errno.ENOSYS
        why = f"{os.strerror(number)}: the filesystem cannot replace it with a link; move it aside by hand"
        raise OSError(number, why if number in (errno.EINVAL, errno.ENOSYS) else os.strerror(number), str(other))


def _unfinished_links(request: Request) -> list[Path]:
    """Return the temporary links of runs that were killed before they renamed them."""
    directory, link = Path(request["directory"]), Path(request["link"])
    paths = [
        *directory.parent.glob(f"{directory.name}-*{REPLACED_SUFFIX}"),
        *link.parent.glob(f".{link.name}-{directory.name}-*"),
    ]
    return [path for path in paths if path.is_symlink()]


def _remove_unused(request: Request) -> list[str]:
    """Remove inactive environments of this program that nothing refers to; return a warning for each failure.

    A failed removal is no error: the leftover does no harm, and the next run tries again.
    """
    directory = Path(request["directory"])
    warnings = []
    for environment in directory.parent.glob(f"{directory.name}-*"):
        is_managed = environment.is_dir() and not environment.is_symlink() and (environment / MARKER).is_file()
        if is_managed and not _is_active(directory, environment) and not _is_referenced(request, environment):
            try:
                shutil.rmtree(environment)
            except OSError as exc:
                warnings.append(f"{environment} is no longer needed, but could not be removed: {exc.strerror}")
                with contextlib.suppress(OSError):
                    _write_marker(environment, None, None)
    return warnings


def _is_active(directory: Path, environment: Path) -> bool:
    """Return whether the link points to it; the parent directory may be a link too."""
    return os.path.realpath(directory) == os.path.realpath(environment)


def _is_referenced(request: Request, environment: Path) -> bool:
    """Return whether a file of install-host or a process refers to it; an unreadable file counts as referring."""
    for path in request["referring"]:
        try:
            if f"{environment}/" in Path(path).read_text(errors="replace"):
                return True
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return True
    return bool(_list_processes(environment))


def _list_processes(environment: Path) -> list[int]:
    """Return the processes that were started from it. The kernel puts a script's interpreter first in cmdline."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if any(word.startswith(os.fsencode(f"{environment}/")) for word in words[:2]):
                pids.append(int(entry.name))
    return pids


def _write_marker(environment: Path, version: str | None, digest: str | None) -> None:
    (environment / MARKER).write_text(json.dumps({"version": version, "digest": digest}))


def _read_marker(environment: Path) -> dict[str, Any]:
    try:
        marker = json.loads((environment / MARKER).read_text())
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) else {}


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


def _mib(size: int) -> str:
    return f"{-(-size // (1 << 20))} MiB"


def _success(data: Document) -> Document:
    return {"schema": "vgpuctl/1", "kind": "install-host", "ok": True, "changed": False, "data": data, "warnings": []}


def _failure(
    code: str,
    status: int,
    message: str,
    hint: str | None,
    facts: dict[str, Any],
    undone: Sequence[str],
    left: Sequence[str] = (),
) -> Document:
    error = {"code": code, "message": message, "hint": hint, "facts": facts, "exit_status": status,
             "undone": list(undone), "left": list(left)}  # fmt: skip
    return {"schema": "vgpuctl/1", "kind": "install-host", "ok": False, "changed": bool(left), "error": error,
            "warnings": []}  # fmt: skip


if __name__ == "__main__":
    stops_ = SignalHandler()
    for number_ in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number_, stops_.handle)
    sys.exit(main(sys.stdin.buffer, stops_))
