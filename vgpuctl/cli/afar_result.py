# SPDX-License-Identifier: Apache-2.0
"""Prints what other hosts answered: one host's as if it were this one, several hosts' as one document or one page."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vgpuctl.cli import document, failures, pages, run, streams, tables
from vgpuctl.cli.failures import Failure
from vgpuctl.cli.result import Result
from vgpuctl.cli.tables import Block, Table
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.cli.settings import Settings
    from vgpuctl.remote.answer import Answer
    from vgpuctl.remote.crowd import Reply

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


def publish_one(settings: Settings, reply: Reply, stopped: int) -> int:
    """Print one host's answer as the command prints its own, and return the exit status."""
    if reply.answer is None:
        status = failures.report(_error(reply), settings, signal_status=stopped or 130)
        return stopped or status
    for warning in reply.answer.warnings:
        streams.write_err(f"warning: {streams.clean(warning)}")
    found = reply.answer.document
    settings.kind = str(found.get("kind", settings.kind))
    if settings.json:
        streams.write_out(document.text(found))
        return reply.answer.status
    if found["ok"]:
        return run.publish(settings, _result(settings, reply.answer))
    streams.write_err("\n".join(failures.text_lines(failure_of(found["error"]), verbose=settings.verbose)))
    return reply.answer.status


def publish(settings: Settings, replies: Sequence[Reply], stopped: int) -> int:
    """Print several hosts' answers, and return the worst exit status."""
    rows = [_row(settings, reply, stopped) for reply in replies]
    status = stopped or worst(row.exit_status for row in rows)
    warnings = [warning for reply in replies if reply.answer for warning in reply.answer.warnings]
    if settings.json:
        streams.write_out(_document(settings.kind, rows, warnings, status))
        return status
    _print(settings, rows, {reply.target.name: reply.answer for reply in replies if reply.answer is not None})
    for warning in warnings:
        streams.write_err(f"warning: {streams.clean(warning)}")
    for row in rows:
        _print_beside(settings, row)
    failed = [row for row in rows if not row.document["ok"]]
    if failed:
        streams.write_err(f"vgpuctl: {_summary(rows, failed)}   [{SOME_FAILED}]")
    return status


def worst(statuses: Any) -> int:
    """Return the worst of exit statuses."""
    found = {status if status in WORST_FIRST or status == 0 or status >= 128 else 1 for status in statuses}
    stopped = [status for status in found if status >= 128]
    return max(stopped) if stopped else next((status for status in WORST_FIRST if status in found), 0)


def failure_of(error: Mapping[str, Any]) -> Failure:
    """Return what a document tells of a failure."""
    return Failure(
        str(error.get("code", "failed")),
        str(error.get("message", "")),
        int(error.get("exit_status", 1)),
        error.get("hint"),
        dict(error.get("facts") or {}),
        [str(step) for step in error.get("undone") or ()],
        [str(step) for step in error.get("left") or ()],
    )


def _row(settings: Settings, reply: Reply, stopped: int) -> HostRow:
    target = reply.target
    user = f"{target.user}@" if target.user else ""
    host = f"[{target.host}]" if ":" in target.host else target.host
    address = f"ssh://{user}{host}{f':{target.port}' if target.port else ''}"
    if reply.answer is not None:
        return HostRow(target.name, address, reply.answer.status, reply.seconds, reply.answer.document)
    found = failures.explain(_error(reply), settings, signal_status=stopped or 130)
    return HostRow(target.name, address, found.status, reply.seconds, failures.document_of(found, settings.kind))


def _error(reply: Reply) -> BaseException:
    return reply.error if reply.error is not None else RuntimeError(f"{reply.target.name}: no answer and no error")


def _result(settings: Settings, answer: Answer) -> Result:
    """Return what the command there would have handed to its own printer."""
    found, data = answer.document, answer.document["data"]
    notes = data.get("notes", ()) if isinstance(data, dict) else ()
    warnings = tuple(str(text) for text in found.get("warnings", ()))
    raw = _raw(settings.kind, data)
    return Result(data, bool(found.get("changed")), warnings, tuple(notes), raw, answer.status)


def _raw(kind: str, data: Any) -> str | None:
    """Return the text of commands that print one as it is."""
    if kind == "assert":
        return ""
    if kind in ("export", "import"):
        return str(data["text"])
    if kind == "create-vm" and set(data) == {"xml"}:
        return str(data["xml"]).rstrip("\n") + "\n"
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
        "left": [f"{row.host}: {left}" for row in failed for left in row.document["error"].get("left", ())],
    }
    return document.failure(KIND, error, changed=changed, data=data, warnings=warnings)


def _summary(rows: Sequence[HostRow], failed: Sequence[HostRow]) -> str:
    named = [f"{row.host} ({row.document['error'].get('code', 'failed')})" for row in failed]
    more = f" and {len(named) - MANY_NAMES} more" if len(named) > MANY_NAMES else ""
    return f"{len(failed)} of {len(rows)} hosts failed: {', '.join(named[:MANY_NAMES])}{more}"


def _print(settings: Settings, rows: Sequence[HostRow], answers: Mapping[str, Answer]) -> None:
    """Print one table with a column of hosts, where the command prints one table; else a heading for each host."""
    found: list[tuple[str, list[Block]]] = []
    for row in rows:
        if row.document["ok"]:
            result = _result(settings, answers[row.host])
            page = pages.page(settings.kind, result.data) if result.raw is None else None
            found.append((row.host, list(page.blocks) if page else _text_blocks(result.raw or "")))
    blocks = joined(found)
    if blocks and streams.is_terminal(sys.stdout):
        tables.show(blocks, sys.stdout)
    elif blocks:
        streams.write_out(tables.plain(blocks))


def _text_blocks(text: str) -> list[Block]:
    return list(text.splitlines())


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


def _print_beside(settings: Settings, row: HostRow) -> None:
    """Print what goes to stderr: why a host failed, and a result's asides, warnings and notes."""
    if not row.document["ok"]:
        failure = failure_of(row.document["error"])
        if not failure.message.startswith(f"{row.host}: "):
            failure.message = f"{row.host}: {failure.message}"
        streams.write_err("\n".join(failures.text_lines(failure, verbose=settings.verbose)))
        return
    data = row.document["data"]
    if _raw(settings.kind, data) is None:
        for line in pages.page(settings.kind, data).asides:
            streams.write_err(f"{row.host}: {streams.clean(line)}")
    for warning in row.document.get("warnings", ()):
        streams.write_err(f"warning: {row.host}: {streams.clean(str(warning))}")
    for note in data.get("notes", ()) if isinstance(data, dict) else ():
        streams.write_err(f"note: {row.host}: {streams.clean(str(note))}")
