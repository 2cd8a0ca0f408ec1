# SPDX-License-Identifier: Apache-2.0
"""Brings vgpuctl to a host that lacks it: looks there, copies the wheels of a wheelhouse, and lets them be installed.

What is done there does `on_host.py`, in one go and to its end, whatever becomes of this side. Here is decided whether
anything has to be brought, and what an answer that was lost means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vgpuctl.errors import AnswerLost, HostCannot, Interrupted, Refused, Unreachable, VgpuctlError
from vgpuctl.remote import answer as answers
from vgpuctl.remote import wheelhouse
from vgpuctl.remote.answer import Answer
from vgpuctl.remote.ran import Asked, Ran, Session, Watch
from vgpuctl.remote.wheelhouse import Wheelhouse
from vgpuctl.value import Value, replace

DIRECTORY = "/opt/vgpuctl"
LINK = "/usr/local/bin/vgpuctl"
"""Where the role of the Ansible collection has both."""
LOCK = "/run/vgpuctl-bring.lock"
"""Held there while vgpuctl is brought; /run is root's, and empty after a boot."""
NEEDS_BYTES = 64 << 20
NEEDS_TIMES = 6
"""What has to be free: so much for pip and setuptools in an environment, and so many times the wheels. With 15 MiB of
wheels on Debian 12 the most that was taken is 79 MiB; half of what is asked for is to spare."""
_PARTS = 4


class Bring(Value):
    """What is brought, with what is asked of every host: made once, for it holds all wheels.

    `told` gets a host's name and a line on how it goes on, when the user wants to know.
    """

    version: str
    directory: str
    look: Asked
    install: Asked
    dry_run: bool
    told: Callable[[str, str], None] | None


def bring(
    house: Wheelhouse,
    words: Sequence[str],
    referring: Sequence[str],
    *,
    dry_run: bool,
    told: Callable[[str, str], None] | None,
) -> Bring:
    """Return what is brought. `words` are those of install-host there; `referring` the files that name its Python."""
    wheels = [{"name": one.file, "bytes": len(one.content), "sha256": one.sha256} for one in house.wheels]
    request = {
        "directory": DIRECTORY, "link": LINK, "lock": LOCK, "referring": referring, "version": house.version,
        "digest": house.digest, "oldest_python": house.oldest_python, "words": words,
        "has_libvirt": house.has(wheelhouse.OF_THE_DISTRIBUTION),
        "needs_bytes": NEEDS_BYTES + NEEDS_TIMES * house.size_bytes, "wheels": wheels, "progress": told is not None,
    }  # fmt: skip
    program = Path(__file__).with_name("on_host.py").read_bytes()

    def asked(act: str, contents: Sequence[bytes]) -> Asked:
        head = json.dumps({"act": act, **request}).encode()
        return Asked((), b"".join([program, head, b"\n", *contents]), len(program))

    install = asked("bring", [one.content for one in house.wheels])
    return Bring(house.version, house.directory, asked("look", []), install, dry_run, told)


def brought(session: Session, name: str, watch: Watch, what: Bring) -> Answer | None:
    """Return the answer of a host to which vgpuctl was brought, or would be. None: that very vgpuctl is there already.

    Raises:
        Refused: a newer one is there.
        HostCannot: it has no Python that vgpuctl runs on.
        Unreachable, Interrupted: nothing was changed there; AnswerLost: that is not known.
    """
    looked = _judged(session.run(what.look, watch), name, changes=False)
    if looked.status:
        return looked
    found = looked.document["data"]
    if not _is_look(found):
        raise answers.nonsense(name, f"is not what a look there answers: {found!s:.99}", changes=False)
    _refuse_older(name, found["was"], what)
    if found["present"]:
        if what.told is not None:
            what.told(name, f"vgpuctl {what.version} is there already: nothing is copied")
        return None
    if what.dry_run:
        return Answer(_would(found, what), 0, looked.warnings)
    sent = _Sent(name, len(what.install.stdin), what.told)
    try:
        return _judged(session.run(what.install, replace(watch, sent=sent)), name, changes=True)
    except AnswerLost as exc:
        raise _lost(exc, name, sent, watch) from exc


def _is_look(found: Any) -> bool:
    if not isinstance(found, dict) or not isinstance(found.get("present"), bool):
        return False
    return isinstance(found.get("was", 0), str | None) and isinstance(found.get("steps"), list)


class _Sent:
    """Tells how much has been copied, in a few lines."""

    def __init__(self, name: str, all_bytes: int, told: Callable[[str, str], None] | None) -> None:
        self.name = name
        self.all_bytes = all_bytes
        self.told = told
        self.sent_bytes = 0

    def __call__(self, sent_bytes: int) -> None:
        before, now = (size * _PARTS // self.all_bytes for size in (self.sent_bytes, sent_bytes))
        self.sent_bytes = sent_bytes
        if self.told is not None and now > before:
            self.told(self.name, f"sent {sent_bytes:,} of {self.all_bytes:,} bytes")


def _judged(ran: Ran, name: str, *, changes: bool) -> Answer:
    if ran.noise is not None and ran.status == answers.NOT_FOUND and not ran.out:
        raise HostCannot(
            f"{name}: there is no Python 3.11 or newer: {answers.last_line(ran.err)}",
            hint="install it there: apt install python3 python3-venv python3-libvirt",
            check="python",
        )
    return answers.judge(ran, name, changes=changes)


def _refuse_older(name: str, there: str | None, what: Bring) -> None:
    newer, ours = wheelhouse.order(there or ""), wheelhouse.order(what.version)
    if newer is not None and ours is not None and newer > ours:
        raise Refused(
            f"{name}: its vgpuctl {there} is newer than {what.version} of {what.directory}: an older one may not"
            " understand what it recorded",
            hint="take a newer wheelhouse",
            there=there,
            wheelhouse=what.version,
        )


def _would(found: Mapping[str, Any], what: Bring) -> dict[str, Any]:
    """Return the document of a dry run: the vgpuctl that would tell what install-host does is not there yet."""
    data = {
        "files": [], "kept": [], "steps": found["steps"], "notes": ["then install-host runs there"], "dry_run": True,
        "brought": {"version": what.version, "was": found["was"]},
    }  # fmt: skip
    return {"schema": answers.SCHEMA, "kind": "install-host", "ok": True, "changed": True, "data": data, "warnings": []}


def _lost(exc: AnswerLost, name: str, sent: _Sent, watch: Watch) -> VgpuctlError:
    """Without all wheels nothing is installed there: they are counted and have checksums."""
    if sent.sent_bytes == sent.all_bytes:
        exc.hint = "run it again: what is whole there stays, and what is not goes"
        return exc
    message = f"{name}: {sent.sent_bytes:,} of {sent.all_bytes:,} bytes were sent, and nothing was installed"
    if watch.stops():
        return Interrupted(message, signal_number=2)
    return Unreachable(f"{message}: {exc.facts.get('reason')}", hint="run it again", reason=exc.facts.get("reason"))
