# SPDX-License-Identifier: Apache-2.0
"""The program that brings vgpuctl to a host. It is sent there as text, and run by the Python there.

So it knows nothing of vgpuctl and takes the standard library of Python 3.11 alone. Its standard input is one line of
JSON, the request, then the wheels one after the other. It prints one document, in the form of vgpuctl's.

Each vgpuctl has an environment of its own, beside the others: DIRECTORY-VERSION-xxxxxx. DIRECTORY is a link to the one
that counts, and is replaced at the very end. An older one stays while a file or a process names it: a command that
runs imports its modules late. A lock on a file that root alone can open keeps two of these programs apart: flock(2)
asks for no right to write, so on /opt any user could hold it.

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

MARK = "brought-by-vgpuctl.json"
"""The file that makes an environment ours to remove; it holds version and digest of the wheelhouse."""
WHEELS = ".vgpuctl-wheels-"
BEFORE = "-before"
"""What the name of an environment that was no link ends with, beside the one that took its place."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""Both are of linux/fcntl.h and linux/fs.h."""
_PIECE = 1 << 20
_LINES = 8

Request = dict[str, Any]
Document = dict[str, Any]


class Refusal(Exception):
    """Why vgpuctl is not brought here: code and exit status are vgpuctl's (docs/exit-codes.md)."""

    def __init__(self, code: str, status: int, message: str, hint: str | None = None, **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.hint = hint
        self.facts = facts
        self.left: list[str] = []


class Stops:
    """What SIGINT and SIGTERM do: they are handed on to the child that runs, and else end the reading of wheels."""

    def __init__(self) -> None:
        self.seen = 0
        self.reading = False
        self.child: subprocess.Popen[str] | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take notice of a signal."""
        self.seen += 1
        if self.child is not None:
            self.child.send_signal(signal.SIGINT)
        elif self.reading:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt when a signal came."""
        if self.seen:
            raise KeyboardInterrupt


def main(stream: BinaryIO, stops: Stops) -> int:
    """Do what the request says, print what came of it, and return the exit status."""
    undone: list[str] = []
    try:
        request = json.loads(stream.readline())
        act = {"look": look, "bring": bring}[request["act"]]
        found = act(request, stream, stops, undone)
    except Refusal as exc:
        found = _failure(exc.code, exc.status, str(exc), exc.hint, exc.facts, undone, exc.left)
    except KeyboardInterrupt:
        found = _failure("interrupted", 130, "stopped while vgpuctl was brought here", None, {}, undone)
    except OSError as exc:
        hint = "make room there, and run it again" if exc.errno == errno.ENOSPC else None
        facts = {"errno": exc.errno, "path": exc.filename}
        found = _failure("os-error", 1, f"{exc.filename}: {exc.strerror}", hint, facts, undone)
    with contextlib.suppress(OSError):  # nobody may hear it
        sys.stdout.write(f"{json.dumps(found)}\n")
        sys.stdout.flush()
    return 0 if found["ok"] else int(found["error"]["exit_status"])


def look(request: Request, stream: BinaryIO, stops: Stops, undone: list[str]) -> Document:
    """Return which vgpuctl is here and what bringing another one would do; nothing is changed.

    Raises:
        Refusal: it could not be brought here.
    """
    was, digest = _there(request, stops)
    present = was == request["version"] and digest in (None, request["digest"])
    if not present:
        _require_room(request)
    steps = [] if present else [*_before(request), *_after(request, was)]
    return _success({"present": present, "was": was, "steps": steps})


def bring(request: Request, stream: BinaryIO, stops: Stops, undone: list[str]) -> Document:
    """Make the environment, run install-host from it, and let it be the one that counts.

    Raises:
        Refusal, OSError, KeyboardInterrupt: it was not, and what was there is as it was; `undone` says what was begun.
    """
    os.umask(0o022)
    above = Path(request["directory"]).parent
    with _alone(request):
        for stale in above.glob(f"{WHEELS}*"):
            shutil.rmtree(stale)
        for dangling in _halves(request):
            dangling.unlink()
        _drop_unused(request)
        was, _ = _there(request, stops)
        _require_room(request)
        before, after = _before(request), _after(request, was)
        with _temporary(above) as wheels:
            _receive(request, stream, wheels, stops)
            _say(request, before[0])
            found = _bring(request, wheels, before, after, stops, undone)
    if found["ok"]:
        found["changed"] = True
        found["data"]["steps"] = [*before, *found["data"]["steps"], *after]
        found["data"]["brought"] = {"version": request["version"], "was": was}
    return found


def _bring(
    request: Request, wheels: Path, before: Sequence[str], after: Sequence[str], stops: Stops, undone: list[str]
) -> Document:
    directory = Path(request["directory"])
    made = _made(request, wheels)
    try:
        _install(request, made, wheels, stops)
        made.chmod(0o755)
        _say(request, before[1])
        _require_idle(directory)  # pip took its time, in which one may have begun
        found = _install_host(request, made, stops)
        if found["ok"]:
            _switch(request, made)
            for line in after:
                _say(request, line)
    finally:
        whole = _counts(directory, made)
        stay = _drop_unused(request)
        if not whole:
            undone += [] if made.exists() else [f"make {made}"]
    if whole:
        found["warnings"] = [*found.get("warnings", []), *stay]
    else:
        found["error"]["undone"] = [*found["error"]["undone"], *undone]
    return found


def _made(request: Request, wheels: Path) -> Path:
    """Make the environment's directory. It is marked before it has its name, so that no instant leaves one unmarked."""
    directory = Path(request["directory"])
    begun = Path(tempfile.mkdtemp(prefix=f"{directory.name}-{request['version']}-", dir=wheels))
    _mark(begun, request["version"], request["digest"])
    return begun.rename(directory.with_name(begun.name))


def _there(request: Request, stops: Stops) -> tuple[str | None, str | None]:
    """Return version and wheelhouse of the vgpuctl that is here; None for one that is missing, or does not run.

    Raises:
        Refusal: something of that name is not what this program or the role of Ansible makes.
    """
    directory, link = Path(request["directory"]), Path(request["link"])
    if os.path.lexists(directory) and not directory.is_symlink() and not (directory / "pyvenv.cfg").is_file():
        raise Refusal("foreign", 3, f"{directory} is no environment of Python", f"look at it: ls -la {directory}")
    found = shutil.which("vgpuctl")
    if found is not None and not os.path.realpath(found).startswith(f"{os.path.realpath(directory)}/"):
        hint = f"PATH has it before {directory}/bin: remove it, or renew it in the way in which it came"
        raise Refusal("foreign", 3, f"{found} is another vgpuctl, which this one would not replace", hint, path=found)
    if os.path.lexists(link) and not link.is_symlink():
        raise Refusal("foreign", 3, f"{link} is a file, and no link to a vgpuctl", f"look at it: file {link}")
    status, out, _ = _run([str(directory / "bin/vgpuctl"), "--version"], stops)
    stops.check()  # what was stopped is not one that does not run
    words = out.split()
    version = words[1] if status == 0 and len(words) == 2 and words[0] == "vgpuctl" else None
    return version, _marked(directory).get("digest")


def _require_room(request: Request) -> None:
    """Raise Refusal when this host lacks what is needed before anything is copied."""
    directory = Path(request["directory"])
    above = directory.parent
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if sys.version_info[:2] < tuple(request["oldest_python"]):
        oldest = ".".join(str(number) for number in request["oldest_python"])
        message = f"{sys.executable} is Python {version}, and vgpuctl {request['version']} needs {oldest} or newer"
        raise Refusal("host-cannot", 6, message, "take a wheelhouse with a vgpuctl for it", check="python")
    if any(importlib.util.find_spec(name) is None for name in ("venv", "ensurepip")):
        hint = f"install its package there: apt install python3-venv; without it: python{version}-venv"
        raise Refusal("host-cannot", 6, f"{sys.executable} makes no environments", hint, check="python3-venv")
    if not request["has_libvirt"] and not _distributed("libvirt-python"):
        hint = "install its package there: apt install python3-libvirt, or dnf install python3-libvirt"
        message = f"{sys.executable} ({version}) has no libvirt module, and the wheelhouse has none"
        raise Refusal("host-cannot", 6, message, hint, check="python3-libvirt")
    room = os.statvfs(above)
    free = room.f_bavail * room.f_frsize
    if free < request["needs_bytes"]:
        message = f"{above} has {_mib(free)} free, and vgpuctl needs {_mib(request['needs_bytes'])} to be brought"
        facts = {"free_bytes": free, "needs_bytes": request["needs_bytes"]}
        raise Refusal("host-cannot", 6, message, "make room there", check="space", **facts)
    _require_idle(directory)


def _require_idle(directory: Path) -> None:
    """Raise Refusal when a process runs from an environment that is no link, and so would be exchanged under it."""
    users = [] if directory.is_symlink() else _processes(directory)
    if users:
        hint = "wait for its end: its modules would be exchanged under it"
        raise Refusal("busy", 75, f"process {users[0]} runs from {directory}", hint, pids=users)


def _before(request: Request) -> list[str]:
    count, size = len(request["wheels"]), _mib(sum(wheel["bytes"] for wheel in request["wheels"]))
    return [
        f"copy {count} {'wheel' if count == 1 else 'wheels'} ({size})",
        f"make environment {request['directory']}-{request['version']}-* with {sys.executable}",
    ]


def _after(request: Request, was: str | None) -> list[str]:
    directory, link = request["directory"], request["link"]
    line = f"let {directory} be vgpuctl {request['version']}{f', it was {was}' if was else ''}"
    there = os.path.islink(link) and os.readlink(link) == f"{directory}/bin/vgpuctl"
    return [line] if there else [f"link {link} to {directory}/bin/vgpuctl", line]


@contextlib.contextmanager
def _alone(request: Request) -> Iterator[None]:
    held = os.open(request["lock"], os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            by = os.pread(held, _PIECE, 0).decode(errors="replace") or "another process"
            message = f"{by} brings vgpuctl to {request['directory']} now"
            raise Refusal("locked", 75, message, "wait for its end, and run it again", path=request["lock"]) from exc
        os.ftruncate(held, 0)
        os.pwrite(held, f"process {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(held)


@contextlib.contextmanager
def _temporary(above: Path) -> Iterator[Path]:
    """Make a directory for the wheels, root's alone; mkdtemp makes it with 0700."""
    made = tempfile.mkdtemp(prefix=WHEELS, dir=above)
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made)


def _receive(request: Request, stream: BinaryIO, wheels: Path, stops: Stops) -> None:
    """Read the wheels, each of as many bytes as it has and with its checksum."""
    stops.check()
    stops.reading = True
    try:
        for wheel in request["wheels"]:
            left, digest = _copy(stream, wheels / os.path.basename(wheel["name"]), int(wheel["bytes"]))
            if left or digest != wheel["sha256"]:
                raise Refusal("failed", 1, f"{wheel['name']} did not arrive whole: {left} bytes lack", "run it again")
    finally:
        stops.reading = False


def _copy(stream: BinaryIO, path: Path, size: int) -> tuple[int, str]:
    """Write so many bytes to a new file; return how many did not come, and the checksum of those that did."""
    digest = hashlib.sha256()
    try:
        with open(path, "xb") as file:
            while size and (piece := stream.read(min(size, _PIECE))):
                digest.update(piece)
                file.write(piece)
                size -= len(piece)
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, str(path)) from exc  # a write does not tell its file
    return size, digest.hexdigest()


def _install(request: Request, made: Path, wheels: Path, stops: Stops) -> None:
    """Make the environment and see whether its vgpuctl runs. What pip unpacks lies beside the wheels."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    env = {**kept, "PIP_CONFIG_FILE": os.devnull, "TMPDIR": str(wheels)}
    python = str(made / "bin/python")
    venv = [sys.executable, "-I", "-m", "venv", "--system-site-packages", str(made)]
    pip = [python, "-I", "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(wheels), "--no-input",
           "--no-cache-dir", "--disable-pip-version-check", f"vgpuctl=={request['version']}"]  # fmt: skip
    for words, what in ((venv, "make the environment"), (pip, f"install vgpuctl {request['version']} in it")):
        status, out, err = _run(words, stops, env)
        stops.check()
        if status:
            lines = [line.strip() for line in f"{out}\n{err}".splitlines() if line.strip()][-_LINES:]
            hint = f"the wheels have to fit Python {sys.version_info[0]}.{sys.version_info[1]} on {os.uname().machine}"
            raise Refusal("failed", 1, f"{sys.executable} could not {what}", hint, lines=lines, exit_status=status)
    status, out, err = _run([str(made / "bin/vgpuctl"), "--version"], stops)
    stops.check()
    if status or out.split() != ["vgpuctl", request["version"]]:
        said = (out + err).strip().splitlines()[-1:]
        raise Refusal("failed", 1, f"vgpuctl {request['version']} does not run here", lines=said, exit_status=status)


def _install_host(request: Request, made: Path, stops: Stops) -> Document:
    status, out, _ = _run([str(made / "bin/vgpuctl"), *request["words"]], stops, to_stderr=True)
    try:
        found = json.loads(out)
        if found["ok"] or isinstance(found["error"]["undone"], list):
            return dict(found)
    except (ValueError, KeyError, TypeError):
        pass
    stops.check()
    message = f"install-host of vgpuctl {request['version']} ended with {status} and no result"
    refusal = Refusal("partly-applied", 5, message, "run it again: what is in place there stays, and the rest is added")
    refusal.left = [f"whatever install-host of vgpuctl {request['version']} put in place"]
    raise refusal


def _switch(request: Request, made: Path) -> None:
    """Let this environment be the one that counts. One that is no link, of the role's or a person's, is moved aside.

    The link in PATH leads to whichever counts, so it may come first.
    """
    directory, link = Path(request["directory"]), Path(request["link"])
    target = f"{directory}/bin/vgpuctl"
    try:
        if not link.is_symlink() or os.readlink(link) != target:
            link.parent.mkdir(parents=True, exist_ok=True)
            _point(link, target, link.with_name(f".{link.name}-{made.name}"))
        _point(directory, made.name, directory.with_name(f"{made.name}{BEFORE}"))
    except OSError as exc:
        refusal = Refusal("partly-applied", 5, f"{exc.filename}: {exc.strerror}", "mend it, and run it again")
        refusal.left = [f"what install-host of vgpuctl {request['version']} put in place"]
        raise refusal from exc


def _point(link: Path, target: str, new: Path) -> None:
    """Put a link in the place of what is there, by one call of the kernel: there is no instant without any.

    An environment that is no link becomes `new`, which is a name that the next look removes.
    """
    os.symlink(target, new)
    try:
        if link.is_dir() and not link.is_symlink():
            _mark(link, None, None)
            _exchange(new, link)
        else:
            os.replace(new, link)
    except OSError:
        new.unlink()
        raise


def _exchange(one: Path, other: Path) -> None:
    """Let two names change places: renameat2(2) with RENAME_EXCHANGE, which glibc has since 2.28."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    words = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if call is None or call(*words):
        number = ctypes.get_errno() if call is not None else errno.ENOSYS
        why = f"{os.strerror(number)}: the filesystem does not exchange it for a link; move it aside by hand"
        raise OSError(number, why if number in (errno.EINVAL, errno.ENOSYS) else os.strerror(number), str(other))


def _halves(request: Request) -> list[Path]:
    """Return the links that one of these programs made and was killed before they had their names."""
    directory, link = Path(request["directory"]), Path(request["link"])
    found = [
        *directory.parent.glob(f"{directory.name}-*{BEFORE}"),
        *link.parent.glob(f".{link.name}-{directory.name}-*"),
    ]
    return [path for path in found if path.is_symlink()]


def _drop_unused(request: Request) -> list[str]:
    """Remove environments that this program made, do not count, and that nothing names; return those that stay.

    One that the system does not let go is no reason to fail: it hinders nobody, and the next run tries again.
    """
    directory = Path(request["directory"])
    stay = []
    for found in directory.parent.glob(f"{directory.name}-*"):
        ours = found.is_dir() and not found.is_symlink() and (found / MARK).is_file()
        if ours and not _counts(directory, found) and not _referred(request, found):
            try:
                shutil.rmtree(found)
            except OSError as exc:
                stay.append(f"{found} is of no use any more, and could not be removed: {exc.strerror}")
                with contextlib.suppress(OSError):
                    _mark(found, None, None)
    return stay


def _counts(directory: Path, environment: Path) -> bool:
    """Say whether it is the one that the link leads to; the directory above may be a link as well."""
    return os.path.realpath(directory) == os.path.realpath(environment)


def _referred(request: Request, environment: Path) -> bool:
    """Say whether a file of install-host or a process names it. A file that cannot be read may."""
    for path in request["referring"]:
        try:
            if f"{environment}/" in Path(path).read_text(errors="replace"):
                return True
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return True
    return bool(_processes(environment))


def _processes(environment: Path) -> list[int]:
    """Return the processes that were started from there: the kernel puts a script's interpreter in front."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if any(word.startswith(os.fsencode(f"{environment}/")) for word in words[:2]):
                found.append(int(entry.name))
    return found


def _mark(environment: Path, version: str | None, digest: str | None) -> None:
    (environment / MARK).write_text(json.dumps({"version": version, "digest": digest}))


def _marked(environment: Path) -> dict[str, Any]:
    try:
        found = json.loads((environment / MARK).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _run(
    words: Sequence[str], stops: Stops, env: dict[str, str] | None = None, *, to_stderr: bool = False
) -> tuple[int, str, str]:
    """Run a program to its end and return its exit status, stdout and stderr; a stop is handed on to it."""
    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(  # noqa: S603 - a list of words, no shell
            words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=None if to_stderr else pipe, text=True,
            errors="replace", cwd="/", env=env,
        )  # fmt: skip
    except OSError as exc:
        return 127, "", f"{words[0]}: {exc.strerror}"
    stops.child = child
    if stops.seen:
        child.send_signal(signal.SIGINT)
    try:
        out, err = child.communicate()
    finally:
        stops.child = None
    return child.returncode, out, err or ""


def _distributed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _say(request: Request, line: str) -> None:
    if request["progress"]:
        with contextlib.suppress(OSError):  # the work goes on when nobody listens any longer
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
    stops_ = Stops()
    for number_ in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number_, stops_.handle)
    sys.exit(main(sys.stdin.buffer, stops_))
