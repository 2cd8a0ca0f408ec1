# SPDX-License-Identifier: Apache-2.0
"""Prints what other hosts answered: one host's as if it were this one, several hosts' as one document or one page."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vgpuctl import __version__
from vgpuctl.cli import answer_check, document, failures, output, pages, run, streams, tables
from vgpuctl.cli.failures import Failure
from vgpuctl.cli.result import Result
from vgpuctl.cli.shapes import KINDS
from vgpuctl.cli.tables import Block, Table
from vgpuctl.errors import AnswerLost, HostCannot, VgpuctlError
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.cli.settings import Settings
    from vgpuctl.remote.answer import Answer
    from vgpuctl.remote.crowd import Reply
    from vgpuctl.remote.target import Target

KIND = "hosts"
SOME_FAILED = "some-hosts-failed"
WORST_FIRST = (5, 1, 3, 6, 2, 4, 75, 7)
"""Exit statuses of hosts, the worst first: what is left half done, failures, what a person has to decide or mend, what
trying elsewhere or again helps, and a difference. A stop by the user comes before all, and any other is as 1."""
MANY_NAMES = 5


class HostRow(Value):
    """One host in the result. `document` is the vgpuctl's there, or one of the same form made here."""

    host: str
    address: str
    exit_status: int
    seconds: float
    document: Mapping[str, Any]


class HostPage(Value):
    """What people see of one host: its part of the result, and whole lines for stderr."""

    host: str
    blocks: tuple[Block, ...]
    beside: tuple[str, ...]


def publish_one(settings: Settings, reply: Reply, stopped: int) -> int:
    """Print one host's answer as the command prints its own, and return the exit status."""
    reply = _checked(settings, reply)
    if reply.answer is None:
        status = failures.report(_error(reply), settings, signal_status=stopped or 130)
        return stopped or status
    for warning in reply.answer.warnings:
        streams.write_err(f"warning: {streams.clean(warning)}")
    found = reply.answer.document
    settings.kind = str(found.get("kind", settings.kind))
    if not found["ok"]:
        failures.tell(settings, failure_of(found["error"]), document.text(found) if settings.json else None)
        return reply.answer.status
    if settings.json:
        changes = {output.HERE: found["data"]} if found.get("changed") else {}
        printed = output.written(settings.kind, lambda: streams.write_out(document.text(found)), changes)
        return reply.answer.status if printed else 1
    return run.publish(settings, _result(settings, reply.answer))


def publish(settings: Settings, replies: Sequence[Reply], stopped: int) -> int:
    """Print several hosts' answers, and return the worst exit status."""
    replies = [_checked(settings, reply) for reply in replies]
    rows = [_row(settings, reply, stopped) for reply in replies]
    warnings = [warning for reply in replies if reply.answer for warning in reply.answer.warnings]
    changes = {row.host: row.document.get("data") for row in rows if row.document["ok"] and row.document.get("changed")}
    status = stopped or worst(row.exit_status for row in rows)
    if settings.json:
        text = _document(settings.kind, rows, warnings, status)
        printed = False
        try:
            printed = output.written(settings.kind, lambda: streams.write_out(text), changes)
        finally:
            if not printed:
                _print_failures(settings, rows)
        return status if printed else 1
    shown = [_page(row, *_shown(settings.kind, row.document["data"])) for row in rows if row.document["ok"]]
    blocks = joined([(page.host, page.blocks) for page in shown])

    def write() -> None:
        if blocks and streams.is_terminal(sys.stdout):
            tables.show(blocks, sys.stdout)
        elif blocks:
            streams.write_out(tables.plain(blocks))

    try:
        printed = output.written(settings.kind, write, changes)
    finally:
        beside = (line for page in shown for line in page.beside)
        for line in (*(f"warning: {warning}" for warning in warnings), *beside):
            streams.write_err(streams.clean(line))
        _print_failures(settings, rows)
    return status if printed else 1


def _print_failures(settings: Settings, rows: Sequence[HostRow]) -> None:
    failed = [row for row in rows if not row.document["ok"]]
    for row in failed:
        _print_failure(settings, row)
    if failed:
        streams.write_err(streams.clean(f"vgpuctl: {_summary(rows, failed)}   [{SOME_FAILED}]"))


def worst(statuses: Any) -> int:
    """Return the worst of exit statuses."""
    found = {status if status in WORST_FIRST or status == 0 or status >= 128 else 1 for status in statuses}
    stopped = [status for status in found if status >= 128]
    return max(stopped) if stopped else next((status for status in WORST_FIRST if status in found), 0)


def failure_of(error: Mapping[str, Any]) -> Failure:
    """Return what a document tells of a failure; another vgpuctl made it, so nothing in it is sure."""
    hint, facts, status = error.get("hint"), error.get("facts"), error.get("exit_status")
    return Failure(
        str(error.get("code", "failed")),
        str(error.get("message", "")),
        status if isinstance(status, int) else 1,
        None if hint is None else str(hint),
        dict(facts) if isinstance(facts, dict) else {},
        _texts(error.get("undone")),
        _texts(error.get("left")),
    )


def _texts(found: object) -> list[str]:
    return [str(one) for one in found] if isinstance(found, list) else []


def _row(settings: Settings, reply: Reply, stopped: int) -> HostRow:
    target, address = reply.target, _address(reply.target)
    if reply.answer is not None:
        return HostRow(target.name, address, reply.answer.status, reply.seconds, reply.answer.document)
    found = failures.explain(_error(reply), settings, signal_status=stopped or 130)
    return HostRow(target.name, address, found.status, reply.seconds, failures.document_of(found, settings.kind))


def _address(target: Target) -> str:
    user = f"{target.user}@" if target.user else ""
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"ssh://{user}{host}{f':{target.port}' if target.port else ''}"


def _error(reply: Reply) -> BaseException:
    return reply.error if reply.error is not None else RuntimeError(f"{reply.target.name}: no answer and no error")


def _result(settings: Settings, answer: Answer) -> Result:
    """Return what the command there would have handed to its own printer."""
    found, data = answer.document, answer.document["data"]
    notes = _texts(data.get("notes")) if isinstance(data, dict) else []
    warnings = tuple(_texts(found.get("warnings")))
    raw = _raw(settings.kind, data)
    return Result(data, bool(found.get("changed")), warnings, tuple(notes), raw, answer.status)


def _raw(kind: str, data: Any) -> str | None:
    """Return the text of commands that print one as it is, but for what would steer the terminal."""
    if kind == "assert":
        return ""
    if kind in ("export", "import"):
        return streams.clean(str(data["text"]))
    if kind == "create-vm" and set(data) == {"xml"}:
        return streams.clean(str(data["xml"])).rstrip("\n") + "\n"
    return None


def _document(command: str, rows: Sequence[HostRow], warnings: Sequence[str], status: int) -> str:
    changed = any(bool(row.document.get("changed")) for row in rows)
    data = {"command": command, "hosts": rows}
    failed = [row for row in rows if not row.document["ok"]]
    if not failed:
        return document.success(KIND, data, changed=changed, warnings=warnings)
    error = {
        "code": SOME_FAILED,
        "message": _summary(rows, failed),
        "hint": None,
        "facts": {"failed": [row.host for row in failed]},
        "exit_status": status,
        "undone": [],
        "left": [f"{row.host}: {left}" for row in failed for left in _texts(row.document["error"].get("left"))],
    }
    return document.failure(KIND, error, changed=changed, data=data, warnings=warnings)


def _summary(rows: Sequence[HostRow], failed: Sequence[HostRow]) -> str:
    named = [f"{row.host} ({row.document['error'].get('code', 'failed')})" for row in failed]
    more = f" and {len(named) - MANY_NAMES} more" if len(named) > MANY_NAMES else ""
    return f"{len(failed)} of {len(rows)} hosts failed: {', '.join(named[:MANY_NAMES])}{more}"


def _checked(settings: Settings, reply: Reply) -> Reply:
    """Return the reply; with an error instead of an answer that is not what the command answers here."""
    if reply.answer is None or not reply.answer.document["ok"]:
        return reply
    found = reply.answer.document
    kind, data = found.get("kind"), found["data"]
    wrong = None if kind == settings.kind else f"it is of the kind {kind!r:.99}"
    wrong = wrong or answer_check.misfit(data, KINDS[settings.kind])
    if wrong is None:
        try:
            _shown(settings.kind, data)
            return reply
        except Exception as exc:  # noqa: BLE001 - a page may rely on more than the shape says
            wrong = f"{type(exc).__name__} {exc}"
    return replace(reply, answer=None, error=_other_shape(settings.kind, reply.target, found, wrong))


def _other_shape(kind: str, target: Target, found: Mapping[str, Any], wrong: str) -> VgpuctlError:
    """Return the error of an answer of another shape. A change that it tells of was made: nothing but that is sure."""
    address = _address(target)
    what = f"what vgpuctl there answers is not what {kind} answers here: {wrong}"
    same = f"bring this vgpuctl there: vgpuctl --host {address} install-host --wheelhouse DIR"
    if found.get("changed") is not True:
        return HostCannot(
            f"{target.name}: {what}",
            hint=f"this is {__version__}; ssh {address} vgpuctl --version tells which is there; {same}",
            check="version",
            here=__version__,
        )
    error = AnswerLost(
        f"{target.name}: {kind} is done there, and {what}",
        hint=f"{same}; then look there: {output.look(kind, found['data'], address)}",
        lines=output.told(kind, found["data"]),
        here=__version__,
    )
    error.changed = True
    return error


def _shown(kind: str, data: Any) -> tuple[list[Block], list[str]]:
    """Return what people see of an answer on stdout, and the lines beside it."""
    raw = _raw(kind, data)
    if raw is not None:
        return list(raw.splitlines()), []
    page = pages.page(kind, data)
    return list(page.blocks), list(page.asides)


def _page(row: HostRow, blocks: Sequence[Block], asides: Sequence[str]) -> HostPage:
    data = row.document["data"]
    notes = _texts(data.get("notes")) if isinstance(data, dict) else []
    beside = [f"{row.host}: {line}" for line in asides]
    beside += [f"warning: {row.host}: {line}" for line in _texts(row.document.get("warnings"))]
    return HostPage(row.host, tuple(blocks), (*beside, *(f"note: {row.host}: {line}" for line in notes)))


def joined(found: Sequence[tuple[str, Sequence[Block]]]) -> list[Block]:
    """Return the hosts' pages as one."""
    shown = [(name, blocks) for name, blocks in found if blocks]
    only = [(name, blocks[0]) for name, blocks in shown if len(blocks) == 1 and isinstance(blocks[0], Table)]
    one = [(name, block) for name, block in only if isinstance(block, Table)]
    if one and len(one) == len(shown) and len({table.headers for _, table in one}) == 1:
        rows = tuple((name, *row) for name, table in one for row in table.rows)
        return [Table(("HOST", *one[0][1].headers), rows, one[0][1].right)]
    pages_: list[Block] = []
    for name, blocks in shown:
        pages_ += [*([""] if pages_ else []), f"== {name}", *blocks]
    return pages_


def _print_failure(settings: Settings, row: HostRow) -> None:
    failure = failure_of(row.document["error"])
    if not failure.message.startswith(f"{row.host}: "):
        failure.message = f"{row.host}: {failure.message}"
    streams.write_err("\n".join(failures.text_lines(failure, verbose=settings.verbose)))
