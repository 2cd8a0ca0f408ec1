# SPDX-License-Identifier: Apache-2.0
"""Requests as CSV: vgpuctl's own columns, or those of the public Alibaba GPU trace; the header decides.

Own: `arrival_seconds`, `departure_seconds` (empty: it stays), `profile`, and optionally `number` and `name`, in any
order. The other: alibaba/clusterdata on GitHub, cluster-trace-gpu-v2023, csv/openb_pod_list_*.csv; of its columns
num_gpu, gpu_milli (of each GPU, in thousandths), gpu_spec (models separated by `|`), creation_time and deletion_time
are used. A file is read completely, or refused with every invalid line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from vgpuctl.errors import InvalidInput
from vgpuctl.placement.trace_request import WHOLE_GPU, ProfileSelector, Trace, TraceRequest

REQUIRED_COLUMNS = ("arrival_seconds", "departure_seconds", "profile")
OWN_COLUMNS = (*REQUIRED_COLUMNS, "number", "name")
ALIBABA_COLUMNS = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase", "creation_time",
    "deletion_time", "scheduled_time",
)  # fmt: skip
MAX_REPORTED_LINES = 20
MAX_VGPUS_PER_REQUEST = 64
"""No request is for more: the largest servers have 16 GPUs, and a VM takes 16 vGPUs."""
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)
_WHOLE = re.compile(r"\d{1,6}", re.ASCII)
_PROFILE = re.compile(r"[^\s|,]+(\|[^\s|,]+)*")

CsvRow = Mapping[str, str]


class _ColumnError(Exception):
    """The problem with a column of a line."""

    def __init__(self, column: str, text: str) -> None:
        super().__init__(text)
        self.column = column


def parse_trace(text: str, file: str) -> Trace:
    """Read a CSV file; `file` is its name, for messages.

    Raises:
        InvalidInput: it is empty, its columns match neither format, or lines are invalid: each as `file:line: column`.
    """
    lines = csv.reader(io.StringIO(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")), strict=True)
    requests: list[TraceRequest] = []
    problems: list[tuple[int, str]] = []
    without_gpu = 0
    try:
        header = tuple(cell.strip() for cell in next(lines, ()))
        parse_row = _row_parser(header, file)
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            try:
                request = parse_row(_make_row(header, cells), lines.line_num)
            except _ColumnError as exc:
                problems.append((lines.line_num, f"{exc.column}: {exc}" if exc.column else str(exc)))
                continue
            without_gpu += request is None
            requests += [request] if request is not None else []
    except csv.Error as exc:
        problems.append((lines.line_num, f"it is not CSV: {exc}"))
    if problems:
        raise invalid_lines_error(file, problems)
    if not requests:
        reason = (
            f"no task in it wants a GPU ({without_gpu} without)" if without_gpu else "it has no line but the header"
        )
        raise InvalidInput(f"{file} has no requests: {reason}", path=file)
    return Trace(tuple(requests), without_gpu)


def invalid_lines_error(file: str, problems: Sequence[tuple[int, str]], hint: str | None = None) -> InvalidInput:
    """Return one InvalidInput for the invalid lines of a file."""
    lines = [f"{file}:{line}: {text}" for line, text in problems[:MAX_REPORTED_LINES]]
    if len(problems) > MAX_REPORTED_LINES:
        lines.append(f"and {len(problems) - MAX_REPORTED_LINES} lines more")
    message = (
        lines[0] if len(problems) == 1 else "\n".join([f"{file} has {len(problems)} lines that are wrong", *lines])
    )
    facts = [{"file": file, "line": line, "problem": text} for line, text in problems[:MAX_REPORTED_LINES]]
    return InvalidInput(message, hint=hint, problems=facts)


def format_trace(requests: Sequence[TraceRequest]) -> Iterator[str]:
    """Yield the lines of a CSV file with vgpuctl's own columns; each selector must name its profile."""
    yield ",".join(OWN_COLUMNS) + "\n"
    for request in requests:
        end = "" if request.departure_seconds is None else _format_seconds(request.departure_seconds)
        yield (
            f"{_format_seconds(request.arrival_seconds)},{end},{request.selector.profile},"
            f"{request.vgpu_count},{request.name}\n"
        )


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").removesuffix(".")


def _row_parser(header: tuple[str, ...], file: str) -> Callable[[CsvRow, int], TraceRequest | None]:
    """Return the function that turns a row with these columns into a request.

    Raises:
        InvalidInput: the columns match neither format.
    """
    if not any(header):
        raise InvalidInput(
            f"{file} is empty", hint=f"its first line names the columns: {','.join(OWN_COLUMNS)}", path=file
        )
    if len(set(header)) == len(header):
        if set(ALIBABA_COLUMNS) <= set(header):
            return _parse_alibaba_row
        if set(REQUIRED_COLUMNS) <= set(header) <= set(OWN_COLUMNS):
            return _parse_own_row
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    unknown = [name or "(empty)" for name in header if name not in OWN_COLUMNS]
    duplicates = sorted({name for name in header if header.count(name) > 1})
    problems = [f"no {' and no '.join(missing)}"] if missing else []
    problems += [f"unknown: {', '.join(unknown)}"] if unknown else []
    problems += [f"there twice: {', '.join(duplicates)}"] if duplicates else []
    raise InvalidInput(
        f"{file}:1: its columns are not those of requests: {'; '.join(problems)}",
        hint=f"say {','.join(OWN_COLUMNS)} (number and name may be left out), or the Alibaba GPU trace's columns",
        path=file,
    )


def _make_row(header: tuple[str, ...], cells: Sequence[str]) -> CsvRow:
    if len(cells) != len(header):
        raise _ColumnError("", f"{len(cells)} columns, and the header has {len(header)}")
    return dict(zip(header, (cell.strip() for cell in cells), strict=True))


def _parse_own_row(row: CsvRow, line: int) -> TraceRequest:
    profile = row["profile"]
    if not _PROFILE.fullmatch(profile):
        raise _ColumnError("profile", f"'{profile}' is not a profile" if profile else "it is empty")
    count = _parse_number(row, "number", 1, MAX_VGPUS_PER_REQUEST) if row.get("number") else 1
    arrival, departure = _parse_times(row, "arrival_seconds", "departure_seconds")
    return TraceRequest(arrival, departure, ProfileSelector(profile), count, row.get("name", ""), line)


def _parse_alibaba_row(row: CsvRow, line: int) -> TraceRequest | None:
    count = _parse_number(row, "num_gpu", 0, MAX_VGPUS_PER_REQUEST)
    milli = _parse_number(row, "gpu_milli", 0, WHOLE_GPU)
    arrival, departure = _parse_times(row, "creation_time", "deletion_time")
    if not count or not milli:
        return None
    if count > 1 and milli != WHOLE_GPU:
        raise _ColumnError("gpu_milli", f"{milli} of each of {count} GPUs: several are whole ones, {WHOLE_GPU}")
    models = tuple(model for model in row["gpu_spec"].split("|") if model)
    return TraceRequest(arrival, departure, ProfileSelector(gpu_milli=milli, models=models), count, row["name"], line)


def _parse_times(row: CsvRow, begin_column: str, end_column: str) -> tuple[float, float | None]:
    arrival = _parse_seconds(row, begin_column)
    if not row[end_column]:
        return arrival, None
    departure = _parse_seconds(row, end_column)
    if departure < arrival:
        raise _ColumnError(end_column, f"{row[end_column]} is before {begin_column}, {row[begin_column]}")
    return arrival, departure


def _parse_seconds(row: CsvRow, column: str) -> float:
    if not _SECONDS.fullmatch(row[column]):
        raise _ColumnError(column, f"'{row[column]}' is not a number of seconds from the beginning")
    return float(row[column])


def _parse_number(row: CsvRow, column: str, minimum: int, maximum: int) -> int:
    if not _WHOLE.fullmatch(row[column]) or not minimum <= int(row[column]) <= maximum:
        raise _ColumnError(column, f"'{row[column]}' is not a number from {minimum} to {maximum}")
    return int(row[column])
