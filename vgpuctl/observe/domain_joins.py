# SPDX-License-Identifier: Apache-2.0
"""Reads how guests with Windows join domains. No error quotes a blob: it has the password of a computer's account."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.config.domain_join import MAX_BLOB_BYTES, is_computer_name, parse_blob
from vgpuctl.errors import Busy, Failed, HostCannot, InvalidInput, NeedsBlob, NotFound, Refused, unreadable_error
from vgpuctl.model.domain_join import DOMAIN_JOIN_DIRECTORY, BlobUse, DomainJoin, JoinSource, NotRootsAlone
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.guests import DomainJoins
    from vgpuctl.ports.host import Host

T = TypeVar("T")
PROGRAM_SECONDS = 60.0
"""So long a program may take to provision a computer."""
_FORMS = (
    "it is a folder with COMPUTER.blob for each computer, or a program that prints the blob of the computer that is "
    "its argument"
)


def read_domain_join(host: Host, name: str) -> DomainJoin:
    """Return a domain that guests of this host can join, without a blob.

    Raises:
        NotFound: the host has no entry for it.
        Refused: it is neither a folder nor a program, or others than root can read or change it.
    """
    path = f"{DOMAIN_JOIN_DIRECTORY}/{name}"
    source = _guarded(path, lambda: _port(host).source(name))
    if source is None:
        raise NotFound(
            f"there is no domain {name} on this host: {path} does not exist",
            hint=f"make a folder, or copy a program to it (it gets COMPUTER, and prints its blob): "
            f"sudo install -d -m 700 {path}",
            domain=name,
        )
    return DomainJoin(name)


def plan_blob(host: Host, name: str, computer: str, uuid: str, disk: str = "") -> BlobUse:
    """Return what a VM's guest will get; a program is not asked, because it would change the computer's account.

    `disk`: the volume that is made for this setup; empty for a new VM's.

    Raises:
        NeedsBlob: its folder has no fresh blob for this computer.
        InvalidInput: it is no blob, or a Windows computer cannot have this name.
        VgpuctlError: as `read_domain_join`.
    """
    check_computer(name, computer)
    read_domain_join(host, name)
    use = BlobUse(name, computer, hashlib.sha256(f"{uuid} {disk}".encode()).hexdigest()[:16])
    return use if _read(host, use) is not None else replace(use, source=JoinSource.PROGRAM)


def check_computer(name: str, computer: str) -> None:
    """Refuse a VM whose name a Windows computer cannot have.

    Raises:
        InvalidInput: it cannot.
    """
    if not is_computer_name(computer):
        raise InvalidInput(
            f"{computer} cannot join {name}: a Windows computer's name has 1 to 15 letters, digits and '-', not at an "
            "end, and is no number",
            hint="choose such a name for the VM",
            computer=computer,
        )


def take_blob(host: Host, use: BlobUse) -> DomainJoin:
    """Return a domain with the blob for a computer, which nothing but this setup can use from now on.

    Raises:
        Failed: the program failed, or printed no blob.
        Busy: the entry was a folder when this was planned, and is a program now, or the other way round.
        VgpuctlError: as `plan_blob`.
    """
    blob, path = _read(host, use), f"{DOMAIN_JOIN_DIRECTORY}/{use.name}"
    if (blob is None) is not (use.source is JoinSource.PROGRAM):
        raise Busy(
            f"{use.computer} cannot join {use.name}: {path} was a {use.source} a moment ago, and is none now",
            hint="run the command again",
            path=path,
        )
    if use.source is JoinSource.PROGRAM:
        return DomainJoin(use.name, _run(host, use))
    _guarded(path, lambda: _port(host).claim(use))
    return DomainJoin(use.name, _read(host, use, claimed=True) or "")


def release_blob(host: Host, use: BlobUse) -> None:
    """Let another setup use a blob: no guest has it. One that cannot be given back is left for the same setup."""
    if use.source is JoinSource.FOLDER:
        with suppress(OSError, ValueError):
            _port(host).release(use)


def forget_blob(host: Host, use: BlobUse) -> None:
    """Delete a used blob.

    Raises:
        VgpuctlError: it cannot be deleted; only the same setup could use it.
    """
    _guarded(f"{DOMAIN_JOIN_DIRECTORY}/{use.name}", lambda: _port(host).forget(use))


def _read(host: Host, use: BlobUse, *, claimed: bool = False) -> str | None:
    """Return the blob in a folder, of those `claimed` only this setup's; None: a program makes it."""
    folder = f"{DOMAIN_JOIN_DIRECTORY}/{use.name}"
    path, problem = f"{folder}/{use.computer}.blob", ""
    if not claimed and _guarded(folder, lambda: _port(host).source(use.name)) is JoinSource.PROGRAM:
        return None
    data = _guarded(path, lambda: _port(host).read(use, MAX_BLOB_BYTES, claimed=claimed))
    if data is None:
        raise NeedsBlob(
            f"{use.computer} cannot join {use.name}: {path} does not exist, or was used",
            hint=f"on a computer of the domain: djoin /provision /domain DOMAIN /machine {use.computer} /savefile "
            f"{use.computer}.blob /reuse; then here: sudo install -m 600 {use.computer}.blob {folder}",
            domain=use.name,
            computer=use.computer,
        )
    try:
        return parse_blob(data)
    except ValueError as error:
        problem = str(error)
    raise InvalidInput(f"{path}: {problem}", hint="copy the file that djoin /provision /savefile wrote", path=path)


def _run(host: Host, use: BlobUse) -> str:
    path, problem = f"{DOMAIN_JOIN_DIRECTORY}/{use.name}", ""
    try:
        data = _port(host).run(use.name, use.computer, deadline_seconds=PROGRAM_SECONDS, max_bytes=MAX_BLOB_BYTES)
        return parse_blob(data)
    except (OSError, ValueError) as error:
        problem = str(error)
    raise Failed(
        f"{use.computer} cannot join {use.name}: {path}: {problem}",
        hint=f"sudo {quote(path)} {use.computer} > /dev/null",
        domain=use.name,
        computer=use.computer,
    )


def _guarded(path: str, read: Callable[[], T]) -> T:
    """Return what is read of an entry, or of a blob; raised outside `except`: nothing of it is in `__context__`."""
    problem, hint = "", _FORMS
    try:
        return read()
    except OSError as error:
        raise unreadable_error(error.filename if isinstance(error.filename, str) else path, error) from None
    except NotRootsAlone as error:
        problem, path = str(error), error.path
        hint = f"sudo chown root: {quote(path)} && sudo chmod {error.change} {quote(path)}"
    except ValueError as error:
        problem = str(error)
    raise Refused(problem, hint=hint, path=path)


def _port(host: Host) -> DomainJoins:
    if host.domain_joins is None:
        raise HostCannot("blobs for domains cannot be read here", check="domain-join")
    return host.domain_joins
