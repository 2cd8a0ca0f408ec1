# SPDX-License-Identifier: Apache-2.0
"""Prints the replies of other hosts: one host's like a local result, several hosts' as one document or one page."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vgpuctl.cli import document, failures, listings, output, run, streams
from vgpuctl.cli.run import CommandOutput
from vgpuctl.cli.schemas import HOSTS, result_type
from vgpuctl.cli.shown import Block, rows_of
from vgpuctl.errors import HostCannot, ResultUnknown, VgpuctlError, worst_status
from vgpuctl.model import documents
from vgpuctl.model.outcome import AnyResult, QueryResult
from vgpuctl.model.result_reader import Mismatch, read_result
from vgpuctl.model.results.host import HostAnswerResult, HostsResult, HostTextResult
from vgpuctl.model.results.vms import XmlResult
from vgpuctl.value import Value, replace
from vgpuctl.version import __version__

if TYPE_CHECKING:
    from vgpuctl.cli.global_options import Settings
    from vgpuctl.remote.fanout import HostReply
    from vgpuctl.remote.session import Target

SOME_FAILED = "some-hosts-failed"
MAX_NAMES = 5


class HostRow(Value):
    """One host in the result. `document` comes from vgpuctl there, or is an error in the same form.

    `result`: also of a command that failed for some of its VMs or GPUs.
    """

    answer: HostAnswerResult
    document: Mapping[str, Any]
    result: AnyResult | None


class HostPage(Value):
    """What people see of one host: its part of the result, and complete lines for stderr."""

    host: str
    blocks: tuple[Block, ...]
    stderr_lines: tuple[str, ...]


def print_reply(settings: Settings, reply: HostReply, stopped: int) -> int:
    """Print one host's reply as the command prints its own result, and return the exit status."""
    reply, result = _check_reply(settings, reply)
    parsed = reply.parsed
    if parsed is None:
        status = failures.report(_reply_error(reply), settings, signal_status=stopped or 130)
        return stopped or status
    for warning in parsed.warnings:
        streams.write_err(f"warning: {streams.sanitize(warning)}")
    body = _narrow_document(settings, parsed.document, result)
    settings.kind = str(body.get("kind", settings.kind))
    if result is None or not body["ok"]:
        if result is not None and not settings.json:
            output.print_page(settings, result)
        failures.print_failure(
            settings,
            documents.read_failure(body["error"]),
            document.text(body, settings.output) if settings.json else None,
        )
        return parsed.status
    if settings.json:
        changes = {output.LOCAL: result} if result.changed else {}
        printed = output.write_result(
            settings.kind, lambda: streams.write_out(document.text(body, settings.output)), changes
        )
        return parsed.status if printed else 1
    return run.print_result(settings, CommandOutput(result, _raw_text(settings, result), parsed.status))


def print_replies(settings: Settings, replies: Sequence[HostReply], stopped: int) -> int:
    """Print several hosts' replies, and return the worst exit status."""
    checked_replies = [_check_reply(settings, reply) for reply in replies]
    rows = [_host_row(settings, reply, result, stopped) for reply, result in checked_replies]
    warnings = [warning for reply, _ in checked_replies if reply.parsed for warning in reply.parsed.warnings]
    results = [(row.answer.host, row.result) for row in rows if row.result is not None]
    changes = {host: result for host, result in results if result.changed}
    status = stopped or worst_status(row.answer.exit_status for row in rows)
    if settings.json:
        text = document.text(_hosts_document(settings.kind, rows, warnings, status), settings.output)
        printed = False
        try:
            printed = output.write_result(settings.kind, lambda: streams.write_out(text), changes)
        finally:
            if not printed:
                _print_failures(settings, rows)
        return status if printed else 1
    host_pages = [_host_page(host, result, *_render_page(settings, result)) for host, result in results]
    blocks = listings.join_pages([(page.host, page.blocks) for page in host_pages], "HOST")

    def write() -> None:
        if settings.output in ("csv", "name"):
            run.print_rows(settings, results, has_host=True)
        elif blocks:
            streams.write_out(output.render(blocks, output.look_of(settings, sys.stdout)))

    try:
        printed = output.write_result(settings.kind, write, changes)
    finally:
        page_lines = (line for page in host_pages for line in page.stderr_lines)
        for line in (*(f"warning: {warning}" for warning in warnings), *page_lines):
            streams.write_err(streams.sanitize(line))
        _print_failures(settings, rows)
    return status if printed else 1


def _print_failures(settings: Settings, rows: Sequence[HostRow]) -> None:
    failed = [row for row in rows if not row.document["ok"]]
    for row in failed:
        _print_failure(settings, row)
    if failed:
        streams.write_err(streams.sanitize(f"vgpuctl: {_summary(rows, failed)}   [{SOME_FAILED}]"))


def _host_row(settings: Settings, reply: HostReply, result: AnyResult | None, stopped: int) -> HostRow:
    target, parsed = reply.target, reply.parsed
    if parsed is not None:
        body, status = parsed.document, parsed.status
    else:
        failure = failures.failure_from_exception(_reply_error(reply), settings, signal_status=stopped or 130)
        body, status = documents.failure_document(failure, settings.kind), failure.status
    body = _narrow_document(settings, body, result)
    narrowed = None if result is None else _narrow_result(settings, result)
    return HostRow(HostAnswerResult(target.name, _ssh_url(target), status, reply.seconds, body), body, narrowed)


def _ssh_url(target: Target) -> str:
    user = f"{target.user}@" if target.user else ""
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"ssh://{user}{host}{f':{target.port}' if target.port else ''}"


def _reply_error(reply: HostReply) -> BaseException:
    return reply.error if reply.error is not None else RuntimeError(f"{reply.target.name}: no answer and no error")


def _raw_text(settings: Settings, result: AnyResult) -> str | None:
    """Return the text of commands that print plain text, without control characters; None for other commands."""
    if settings.quiet:
        return ""
    if isinstance(result.data, HostTextResult):
        return streams.sanitize(result.data.text)
    if isinstance(result.data, XmlResult):
        return streams.sanitize(result.data.xml).rstrip("\n") + "\n"
    return None


def _narrow_document(settings: Settings, body: Mapping[str, Any], result: AnyResult | None) -> Mapping[str, Any]:
    """Return a host's document with the rows that --filter and --sort-by show, as it sent them."""
    listing = listings.find_listing(settings.kind)
    rows = None if result is None else rows_of(listing, result.data)
    if listing is None or rows is None:
        return body
    numbers = listings.row_numbers(listing, listings.view_of(settings), rows)
    data, within = body["data"], listing.within
    if within is None:
        return {**body, "data": [data[number] for number in numbers]}
    return {**body, "data": {**data, within: [data[within][number] for number in numbers]}}


def _narrow_result(settings: Settings, result: AnyResult) -> AnyResult:
    return listings.narrow(settings.kind, listings.view_of(settings), result)


def _hosts_document(
    command: str, rows: Sequence[HostRow], warnings: Sequence[str], status: int
) -> Mapping[str, object]:
    changed = any(bool(row.document.get("changed")) for row in rows)
    hosts = HostsResult(command, tuple(row.answer for row in rows))
    failed = [row for row in rows if not row.document["ok"]]
    if not failed:
        return documents.success_body(HOSTS, QueryResult(hosts, tuple(warnings), changed))
    error = {
        "code": SOME_FAILED,
        "message": _summary(rows, failed),
        "hint": None,
        "facts": {"failed": [row.answer.host for row in failed]},
        "exit_status": status,
        "undone": [],
        "left": [
            f"{row.answer.host}: {left}"
            for row in failed
            for left in documents.texts_of(row.document["error"].get("left"))
        ],
    }
    return documents.failure_body(HOSTS, error, changed=changed, data=hosts, warnings=warnings)


def _summary(rows: Sequence[HostRow], failed: Sequence[HostRow]) -> str:
    labels = [f"{row.answer.host} ({row.document['error'].get('code', 'failed')})" for row in failed]
    more = f" and {len(labels) - MAX_NAMES} more" if len(labels) > MAX_NAMES else ""
    return f"{len(failed)} of {len(rows)} hosts failed: {', '.join(labels[:MAX_NAMES])}{more}"


def _check_reply(settings: Settings, reply: HostReply) -> tuple[HostReply, AnyResult | None]:
    """Return the reply, and its result if there is one; that of a command that worked must be readable here."""
    if reply.parsed is None:
        return reply, None
    if not reply.parsed.document["ok"]:
        return reply, _partial_result(settings.kind, reply.parsed.document)
    body = reply.parsed.document
    kind = body.get("kind")
    try:
        if kind != settings.kind:
            raise Mismatch(f"it is of the kind {kind!r:.99}")
        return reply, read_result(result_type(settings.kind), body)
    except Mismatch as mismatch:
        error = _shape_error(settings.kind, reply.target, body, str(mismatch))
        return replace(reply, parsed=None, error=error), None


def _partial_result(kind: str, body: Mapping[str, Any]) -> AnyResult | None:
    """Return what succeeded for some VMs or GPUs of a command that failed there; None if nothing can be shown."""
    if not isinstance(body.get("data"), dict) or body.get("kind") != kind:
        return None
    try:
        return read_result(result_type(kind), body)
    except Mismatch:
        return None


def _shape_error(kind: str, target: Target, body: Mapping[str, Any], mismatch: str) -> VgpuctlError:
    """Return the error for a reply of another shape. If it reports a change, only the change itself is certain."""
    address = _ssh_url(target)
    problem = f"the vgpuctl there sent a result of {kind} that this version cannot read: {mismatch}"
    install_hint = f"vgpuctl --host {address} install-host --deb FILE installs this version there"
    if body.get("changed") is not True:
        return HostCannot(
            f"{target.name}: {problem}",
            hint=f"{install_hint}; this is {__version__}, and ssh {address} vgpuctl --version shows the version there",
            check="version",
            here=__version__,
        )
    data = body["data"]
    error = ResultUnknown(
        f"{target.name}: {kind} is done there, and {problem}",
        hint=f"{install_hint}; then {output.inspect_command(kind, data, address)}",
        lines=list(documents.texts_of(data.get("steps"))) if isinstance(data, dict) else [],
        here=__version__,
    )
    error.changed = True
    return error


def _render_page(settings: Settings, result: AnyResult) -> tuple[list[Block], list[str]]:
    """Return what people see of a reply on stdout, and the lines for stderr."""
    raw = _raw_text(settings, result)
    if raw is not None:
        return list(raw.splitlines()), []
    page = listings.page(settings.kind, result, listings.view_of(settings))
    return list(page.blocks), list(page.stderr_lines)


def _host_page(host: str, result: AnyResult, blocks: Sequence[Block], stderr_lines: Sequence[str]) -> HostPage:
    lines = [f"{host}: {line}" for line in stderr_lines]
    lines += [f"warning: {host}: {line}" for line in result.warnings]
    return HostPage(host, tuple(blocks), (*lines, *(f"note: {host}: {line}" for line in result.notes)))


def _print_failure(settings: Settings, row: HostRow) -> None:
    failure = documents.read_failure(row.document["error"])
    if not failure.message.startswith(f"{row.answer.host}: "):
        failure = replace(failure, message=f"{row.answer.host}: {failure.message}")
    streams.write_err("\n".join(failures.text_lines(failure, verbose=settings.verbose)))
