# SPDX-License-Identifier: Apache-2.0
"""Requests for vGPUs with their times, and the CSV files that hold them.

The columns are `arrival_seconds`, `departure_seconds` (empty: it stays), `profile`, and optionally `number` and `name`,
in any order. A file is read completely, or refused with every invalid line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence

from vgpuctl.errors import InvalidInput
from vgpuctl.value import Value

REQUIRED_COLUMNS = ("arrival_seconds", "departure_seconds", "profile")
COLUMNS = (*REQUIRED_COLUMNS, "number", "name")
MAX_REPORTED_LINES = 20
MAX_VGPUS_PER_REQUEST = 64
"""No request is for more: the largest servers have 16 GPUs, and a VM takes 16 vGPUs."""
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)
_WHOLE = re.compile(r"\d{1,6}", re.ASCII)
_PROFILE = re.compile(r"[^\s|,]+(\|[^\s|,]+)*")


class TraceRequest(Value):
    """One VM's vGPUs: `vgpu_count` of them, all or none. `line` is its line in the file, 0 when it was generated.

    Times are seconds from the beginning. `departure_seconds` None: it stays until the end. `profile`: one or more
    names, see `placement.profile_resolution`.
    """

    arrival_seconds: float
    departure_seconds: float | None
    profile: str
    vgpu_count: int = 1
    name: str = ""
    line: int = 0


class _ColumnError(Exception):
    """The problem with a line."""


def parse_trace(text: str, file: str) -> tuple[TraceRequest, ...]:
    """Read a CSV file; `file` is its name, for messages.

    Raises:
        InvalidInput: it is empty, its columns are wrong, or lines are invalid: each as `file:line: column: problem`.
    """
    lines = csv.reader(io.StringIO(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")), strict=True)
    requests: list[TraceRequest] = []
    problems: list[tuple[int, str]] = []
    try:
        header = tuple(cell.strip() for cell in next(lines, ()))
        _check_header(header, file)
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            try:
                requests.append(_parse_line(header, cells, lines.line_num))
            except _ColumnError as exc:
                problems.append((lines.line_num, str(exc)))
    except csv.Error as exc:
        problems.append((lines.line_num, f"it is not CSV: {exc}"))
    if problems:
        raise invalid_lines_error(file, problems)
    if not requests:
        raise InvalidInput(f"{file} has no requests: it has no line but the header", path=file)
    return tuple(requests)


def invalid_lines_error(file: str, problems: Sequence[tuple[int, str]]) -> InvalidInput:
    """Return one InvalidInput for the invalid lines of a file."""
    lines = [f"{file}:{line}: {text}" for line, text in problems[:MAX_REPORTED_LINES]]
    if len(problems) > MAX_REPORTED_LINES:
        lines.append(f"and {len(problems) - MAX_REPORTED_LINES} more lines")
    message = lines[0] if len(problems) == 1 else "\n".join([f"{file} has {len(problems)} invalid lines", *lines])
    facts = [{"file": file, "line": line, "problem": text} for line, text in problems[:MAX_REPORTED_LINES]]
    return InvalidInput(message, problems=facts)


def format_trace(requests: Sequence[TraceRequest]) -> Iterator[str]:
    """Yield the lines of a CSV file."""
    yield ",".join(COLUMNS) + "\n"
    for request in requests:
        end = "" if request.departure_seconds is None else _format_seconds(request.departure_seconds)
        begin = _format_seconds(request.arrival_seconds)
        yield f"{begin},{end},{request.profile},{request.vgpu_count},{request.name}\n"


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").removesuffix(".")


def _check_header(header: tuple[str, ...], file: str) -> None:
    """Check that these are the columns of requests.

    Raises:
        InvalidInput: a column is missing, unknown or repeated.
    """
    if not any(header):
        raise InvalidInput(
            f"{file} is empty", hint=f"its first line must be the header: {','.join(COLUMNS)}", path=file
        )
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    unknown = [name or "(empty)" for name in header if name not in COLUMNS]
    duplicates = sorted({name for name in header if header.count(name) > 1})
    problems = [f"missing: {', '.join(missing)}"] if missing else []
    problems += [f"unknown: {', '.join(unknown)}"] if unknown else []
    problems += [f"repeated: {', '.join(duplicates)}"] if duplicates else []
    if problems:
        raise InvalidInput(
            f"{file}:1: these are not the columns of requests; {'; '.join(problems)}",
            hint=f"the columns are {','.join(COLUMNS)}; number and name are optional",
            path=file,
        )


def _parse_line(header: tuple[str, ...], cells: Sequence[str], line: int) -> TraceRequest:
    if len(cells) != len(header):
        raise _ColumnError(f"{len(cells)} columns, and the header has {len(header)}")
    row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
    profile, count, departs = row["profile"], row.get("number") or "1", row["departure_seconds"]
    if not _PROFILE.fullmatch(profile):
        raise _ColumnError(f"profile: '{profile}' is not a profile" if profile else "profile: it is empty")
    if not _WHOLE.fullmatch(count) or not 1 <= int(count) <= MAX_VGPUS_PER_REQUEST:
        raise _ColumnError(f"number: '{count}' is not a number from 1 to {MAX_VGPUS_PER_REQUEST}")
    arrival = _parse_seconds(row, "arrival_seconds")
    departure = _parse_seconds(row, "departure_seconds") if departs else None
    if departure is not None and departure < arrival:
        raise _ColumnError(f"departure_seconds: {departs} is before arrival_seconds, {row['arrival_seconds']}")
    return TraceRequest(arrival, departure, profile, int(count), row.get("name", ""), line)


def _parse_seconds(row: Mapping[str, str], column: str) -> float:
    if not _SECONDS.fullmatch(row[column]):
        raise _ColumnError(f"{column}: '{row[column]}' is not a number of seconds since the start")
    return float(row[column])
