# SPDX-License-Identifier: Apache-2.0
"""Every way a command can fail, as text or JSON and an exit status. No traceback reaches a user by itself."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import click

from vgpuctl.cli import streams
from vgpuctl.cli.settings import Settings
from vgpuctl.errors import FileFailed, Interrupted, OutputLost, PartlyApplied, VgpuctlError, missing_library

LINES_FACTS = ("lines", "reasons", "details")
"""Facts that are lists of finished sentences."""

QUIET_FACTS = ("call", "cause", "check", "errno", "libvirt_code", "subject")
"""Facts for programs: people see them with -v."""

DOCTOR_FACT = "doctor"
"""The fact that vgpuctl.cli.consult adds; it has lines of its own."""

LONGEST_FACT = 200
LEFT_HINT = "'vgpuctl reconcile' finishes or undoes what is left"


@dataclass
class Failure:
    """What is told about a failure, in both forms."""

    code: str
    message: str
    status: int
    hint: str | None = None
    facts: dict[str, object] = field(default_factory=dict)
    undone: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    traceback: str | None = None
    changed: bool = False


def report(
    exc: BaseException,
    settings: Settings,
    *,
    signal_status: int = 130,
    told: Callable[[Failure], None] | None = None,
) -> int:
    """Tell the user what went wrong, and `told` too, and return the exit status."""
    failure = explain(exc, settings, signal_status=signal_status)
    if told is not None:
        told(failure)
    if settings.json and failure.code != OutputLost.code:
        from vgpuctl.cli import document

        tell(settings, failure, document.text(document_of(failure, settings.kind)))
        if failure.traceback:
            streams.write_err(streams.clean(failure.traceback))
    else:
        tell(settings, failure, None)
    return failure.status


def tell(settings: Settings, failure: Failure, document: str | None) -> None:
    """Print a failure's document, or its text on stderr where there is none, or nobody takes it."""
    try:
        if document is not None:
            streams.write_out(document)
            return
    except OSError as unwritable:
        streams.write_err(f"vgpuctl: the result could not be written: {unwritable.strerror}   [output]")
    streams.write_err("\n".join(text_lines(failure, verbose=settings.verbose)))


def document_of(failure: Failure, kind: str) -> dict[str, object]:
    """Return the document that tells of a failure."""
    from vgpuctl.cli import document

    return document.failure_body(kind, _error(failure), changed=failure.changed or bool(failure.left))


def explain(exc: BaseException, settings: Settings, *, signal_status: int = 130) -> Failure:
    """Return what to say about any exception."""
    exc = _interruption(exc) or exc
    exc = _library(exc) or exc
    if isinstance(exc, VgpuctlError):
        return _known(exc, settings)
    if isinstance(exc, click.ClickException):
        from vgpuctl.cli.usage import explain_usage

        message, hint = explain_usage(exc)
        return Failure("usage", message, 2, hint)
    if isinstance(exc, (KeyboardInterrupt, click.Abort)):
        return _stopped(exc, signal_status)
    if isinstance(exc, SystemExit):
        return Failure("bug", f"something called exit({exc.code!r})", 1)
    if isinstance(exc, OSError) and (exc.filename is not None or exc.errno in _HINTS):
        return _system(exc)
    return _bug(exc, settings)


def _known(exc: VgpuctlError, settings: Settings) -> Failure:
    """Take an error over as it is; -v shows what it was made of."""
    status, hint = exc.status, exc.hint
    if isinstance(exc, Interrupted):
        status = 128 + exc.signal_number
        hint = hint or (LEFT_HINT if exc.left else None)
    found = Failure(exc.code, exc.message, status, hint, dict(exc.facts), list(exc.undone), list(exc.left))
    found.changed = exc.changed
    path = exc.facts.get("path")
    if isinstance(exc, FileFailed) and isinstance(path, str) and path.startswith("/"):
        found.facts["file_system"] = _mounted_on(path)
    if settings.verbose and exc.__cause__ is not None:
        import traceback

        found.traceback = "".join(traceback.format_exception(exc))
    return found


def text_lines(failure: Failure, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines that people read."""
    first, *more = streams.clean(failure.message).splitlines() or [""]
    yield f"vgpuctl: {first}   [{streams.clean(failure.code)}]"
    yield from (f"  {line}" for line in more)
    yield from (f"  {line}" for line in _fact_lines(failure, verbose=verbose))
    yield from _undone_lines(failure, verbose=verbose)
    yield from _list_lines("left", failure.left)
    yield from _doctor_lines(failure)
    if failure.hint:
        yield f"  hint: {streams.clean(failure.hint)}"
    if failure.traceback:
        yield streams.clean(failure.traceback).rstrip()


def _doctor_lines(failure: Failure) -> Iterator[str]:
    if DOCTOR_FACT in failure.facts:
        from vgpuctl.cli import consult

        yield from (f"  {line}" for line in consult.lines(failure.facts[DOCTOR_FACT], failure.message))


def _list_lines(title: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield f"  {title}:"
        yield from (f"    {streams.clean(item)}" for item in items)


def _undone_lines(failure: Failure, *, verbose: bool) -> Iterator[str]:
    """Yield how much was undone: each step was told when it happened."""
    number = len(failure.undone)
    if verbose:
        yield from _list_lines("undone", failure.undone)
    elif number:
        how = "only in part" if failure.left else "completely"
        yield f"  undone {how}: {number} step{'' if number == 1 else 's'} taken back"


def _fact_lines(failure: Failure, *, verbose: bool) -> Iterator[str]:
    for name, value in failure.facts.items():
        if name == DOCTOR_FACT:
            continue
        if name in LINES_FACTS and isinstance(value, (list, tuple)):
            yield from (streams.clean(str(item)) for item in value)
        elif verbose or (name not in QUIET_FACTS and _adds_something(value, failure)):
            yield streams.clean(f"{name.replace('_', ' ')}: {_fact_text(value)}")


def _adds_something(value: object, failure: Failure) -> bool:
    """Say whether a fact is short and not in the message already."""
    if value is None or isinstance(value, bool) or value in ("", [], (), {}):
        return False
    if isinstance(value, dict) or (isinstance(value, (list, tuple)) and isinstance(value[0], dict)):
        return False
    text = _fact_text(value)
    said = rf"(?<!\w){re.escape(text)}(?!\w)"
    return len(text) <= LONGEST_FACT and not re.search(said, f"{failure.message}\n{failure.hint}")


def _fact_text(value: object) -> str:
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(str(item) for item in value)
    return str(value)


def _error(failure: Failure) -> dict[str, object]:
    return {
        "code": failure.code,
        "message": failure.message,
        "hint": failure.hint,
        "facts": failure.facts,
        "exit_status": failure.status,
        "undone": failure.undone,
        "left": failure.left,
    }


def _library(exc: BaseException) -> VgpuctlError | None:
    """Return what to say where a library is not there, which is the host's state and no bug."""
    return missing_library(exc) if isinstance(exc, ImportError) else None


def _interruption(exc: BaseException) -> Interrupted | None:
    """Return the Interrupted that somebody took for another failure, with what was undone and is left."""
    if not isinstance(exc, Exception) or isinstance(exc, (Interrupted, PartlyApplied)):
        return None
    seen = next((one for one in _chain(exc) if isinstance(one, Interrupted)), None)
    if seen is not None and isinstance(exc, VgpuctlError):
        seen.undone = seen.undone or exc.undone
        seen.left = seen.left or exc.left
    return seen


_MAY_NOT = "run it as root, or see who may: ls -ld {path}"
_HINTS: dict[int | None, str] = {
    errno.ENOSPC: "{place} is full: df -h {place}; df -i {place}; make room there and run it again",
    errno.EDQUOT: "the quota on {place} is used up: make room there and run it again",
    errno.EROFS: "{place} is mounted read-only: findmnt {place}",
    errno.EACCES: _MAY_NOT,
    errno.EPERM: _MAY_NOT,
    errno.EIO: "the device below {place} fails: journalctl -k -n 20",
    errno.EMFILE: "too many files are open: ulimit -n",
    errno.ENFILE: "too many files are open on this host: sysctl fs.file-nr",
    errno.ENOMEM: "this host has no memory left: free -m",
}


def _system(exc: OSError) -> Failure:
    """Explain what the system refused and nobody wrapped: a full /run, a missing right. The host's state, no bug."""
    path = os.fsdecode(exc.filename) if isinstance(exc.filename, (str, bytes)) else None
    place = _mounted_on(path) if path and path.startswith("/") else None
    facts: dict[str, object] = {"errno": exc.errno, "path": path, "file_system": place}
    said = exc.strerror or os.strerror(exc.errno or 0)
    if path is None:
        return Failure("os-error", said, 1, "df -h; findmnt; free -m show what this host lacks", facts)
    hint = _HINTS.get(exc.errno, "see what is there: ls -ld {path}")
    if hint is _MAY_NOT and os.geteuid() == 0:
        hint = "root may not either, so SELinux, AppArmor or an attribute forbids it: lsattr -d {path}"
    return Failure("os-error", f"{said}: {path}", 1, hint.format(place=place or path, path=path), facts)


def _mounted_on(path: str) -> str:
    """Return where the file system is mounted that holds a path, or that would."""
    place = os.path.realpath(path)
    while place != "/" and not os.path.ismount(place):
        place = os.path.dirname(place)
    return place


def _stopped(exc: BaseException, status: int) -> Failure:
    """Explain a second signal: what the engine had to leave is in the errors that were on their way."""
    undone: list[str] = []
    left: list[str] = []
    for seen in _chain(exc):
        if isinstance(seen, VgpuctlError):
            undone += [item for item in seen.undone if item not in undone]
            left += [item for item in seen.left if item not in left]
    return Failure("interrupted", "stopped", status, LEFT_HINT if left else None, undone=undone, left=left)


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those it came from, each once: one that was raised from itself is its own cause."""
    known: set[int] = set()
    seen: BaseException | None = exc
    while seen is not None and id(seen) not in known:
        known.add(id(seen))
        yield seen
        seen = seen.__cause__ or seen.__context__


def _bug(exc: BaseException, settings: Settings) -> Failure:
    import traceback

    text = "".join(traceback.format_exception(exc))
    said = str(exc).strip().splitlines()
    message = f"unexpected {type(exc).__name__}{': ' + said[0] if said else ''}"
    if settings.verbose:
        return Failure("bug", message, 1, "this is a bug in vgpuctl: please report it", traceback=text)
    path = _save(text)
    where = f" with the file {path}" if path else "; run it again with -v to see where"
    facts: dict[str, object] = {"traceback": path} if path else {}
    return Failure("bug", message, 1, f"this is a bug in vgpuctl: please report it{where}", facts)


def _save(text: str) -> str | None:
    """Write the traceback where only the caller can read it, and return the path."""
    import tempfile

    try:
        path = os.path.join(tempfile.mkdtemp(prefix="vgpuctl-"), "traceback.txt")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return None
    return path
