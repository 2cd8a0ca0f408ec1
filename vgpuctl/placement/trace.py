# SPDX-License-Identifier: Apache-2.0
"""Requests as CSV: vgpuctl's own columns, or those of the public Alibaba GPU trace; the header says which.

Own: `arrival_seconds`, `departure_seconds` (empty: it stays), `profile`, and if wanted `number` and `name`, in any
order. The other: alibaba/clusterdata on GitHub, cluster-trace-gpu-v2023, csv/openb_pod_list_*.csv, of which num_gpu,
gpu_milli (of each GPU, in thousandths), gpu_spec (models with `|` between them), creation_time and deletion_time
count. A file is taken whole or refused with every line that is wrong.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from vgpuctl.errors import InvalidInput
from vgpuctl.placement.requests import WHOLE_GPU, Ask, Request, Requests

NEEDED = ("arrival_seconds", "departure_seconds", "profile")
OWN = (*NEEDED, "number", "name")
ALIBABA = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase", "creation_time",
    "deletion_time", "scheduled_time",
)  # fmt: skip
MOST_TOLD = 20
MOST_VGPUS = 64
"""No request is for more: the largest servers have 16 GPUs, and a VM takes 16 vGPUs."""
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)
_WHOLE = re.compile(r"\d{1,6}", re.ASCII)
_PROFILE = re.compile(r"[^\s|,]+(\|[^\s|,]+)*")

Row = Mapping[str, str]


class _Wrong(Exception):
    """What is wrong with a column of a line."""

    def __init__(self, column: str, text: str) -> None:
        super().__init__(text)
        self.column = column


def read(text: str, file: str) -> Requests:
    """Read a CSV file; `file` is its name, for messages.

    Raises:
        InvalidInput: it is empty, its columns are neither format's, or lines are wrong: each as `file:line: column`.
    """
    lines = csv.reader(io.StringIO(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")), strict=True)
    found: list[Request] = []
    wrong: list[tuple[int, str]] = []
    without_gpu = 0
    try:
        header = tuple(cell.strip() for cell in next(lines, ()))
        made = _format(header, file)
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            try:
                request = made(_row(header, cells), lines.line_num)
            except _Wrong as exc:
                wrong.append((lines.line_num, f"{exc.column}: {exc}" if exc.column else str(exc)))
                continue
            without_gpu += request is None
            found += [request] if request is not None else []
    except csv.Error as exc:
        wrong.append((lines.line_num, f"it is not CSV: {exc}"))
    if wrong:
        raise refusal(file, wrong)
    if not found:
        what = f"no task in it wants a GPU ({without_gpu} without)" if without_gpu else "it has no line but the header"
        raise InvalidInput(f"{file} has no requests: {what}", path=file)
    return Requests(tuple(found), without_gpu)


def refusal(file: str, wrong: Sequence[tuple[int, str]], hint: str | None = None) -> InvalidInput:
    """Return one InvalidInput for what is wrong in lines of a file."""
    told = [f"{file}:{line}: {text}" for line, text in wrong[:MOST_TOLD]]
    if len(wrong) > MOST_TOLD:
        told.append(f"and {len(wrong) - MOST_TOLD} lines more")
    message = told[0] if len(wrong) == 1 else "\n".join([f"{file} has {len(wrong)} lines that are wrong", *told])
    facts = [{"file": file, "line": line, "problem": text} for line, text in wrong[:MOST_TOLD]]
    return InvalidInput(message, hint=hint, problems=facts)


def write(requests: Sequence[Request]) -> Iterator[str]:
    """Yield the lines of a CSV file with vgpuctl's own columns; each ask must name its profile."""
    yield ",".join(OWN) + "\n"
    for one in requests:
        end = "" if one.departure_seconds is None else _shown(one.departure_seconds)
        yield f"{_shown(one.arrival_seconds)},{end},{one.ask.profile},{one.number},{one.name}\n"


def _shown(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").removesuffix(".")


def _format(header: tuple[str, ...], file: str) -> Callable[[Row, int], Request | None]:
    """Return what makes a request of a row with these columns.

    Raises:
        InvalidInput: they are those of neither format.
    """
    if not any(header):
        raise InvalidInput(f"{file} is empty", hint=f"its first line names the columns: {','.join(OWN)}", path=file)
    if len(set(header)) == len(header):
        if set(ALIBABA) <= set(header):
            return _alibaba
        if set(NEEDED) <= set(header) <= set(OWN):
            return _own
    missing = [name for name in NEEDED if name not in header]
    other = [name or "(empty)" for name in header if name not in OWN]
    twice = sorted({name for name in header if header.count(name) > 1})
    said = [f"no {' and no '.join(missing)}"] if missing else []
    said += [f"unknown: {', '.join(other)}"] if other else []
    said += [f"there twice: {', '.join(twice)}"] if twice else []
    raise InvalidInput(
        f"{file}:1: its columns are not those of requests: {'; '.join(said)}",
        hint=f"say {','.join(OWN)} (number and name may be left out), or the Alibaba GPU trace's columns",
        path=file,
    )


def _row(header: tuple[str, ...], cells: Sequence[str]) -> Row:
    if len(cells) != len(header):
        raise _Wrong("", f"{len(cells)} columns, and the header has {len(header)}")
    return dict(zip(header, (cell.strip() for cell in cells), strict=True))


def _own(row: Row, line: int) -> Request:
    profile = row["profile"]
    if not _PROFILE.fullmatch(profile):
        raise _Wrong("profile", f"'{profile}' is not a profile" if profile else "it is empty")
    number = _number(row, "number", 1, MOST_VGPUS) if row.get("number") else 1
    arrival, departure = _times(row, "arrival_seconds", "departure_seconds")
    return Request(arrival, departure, Ask(profile), number, row.get("name", ""), line)


def _alibaba(row: Row, line: int) -> Request | None:
    number = _number(row, "num_gpu", 0, MOST_VGPUS)
    milli = _number(row, "gpu_milli", 0, WHOLE_GPU)
    arrival, departure = _times(row, "creation_time", "deletion_time")
    if not number or not milli:
        return None
    if number > 1 and milli != WHOLE_GPU:
        raise _Wrong("gpu_milli", f"{milli} of each of {number} GPUs: several are whole ones, {WHOLE_GPU}")
    models = tuple(model for model in row["gpu_spec"].split("|") if model)
    return Request(arrival, departure, Ask(gpu_milli=milli, models=models), number, row["name"], line)


def _times(row: Row, begin: str, end: str) -> tuple[float, float | None]:
    arrival = _seconds(row, begin)
    if not row[end]:
        return arrival, None
    departure = _seconds(row, end)
    if departure < arrival:
        raise _Wrong(end, f"{row[end]} is before {begin}, {row[begin]}")
    return arrival, departure


def _seconds(row: Row, column: str) -> float:
    if not _SECONDS.fullmatch(row[column]):
        raise _Wrong(column, f"'{row[column]}' is not a number of seconds from the beginning")
    return float(row[column])


def _number(row: Row, column: str, least: int, most: int) -> int:
    if not _WHOLE.fullmatch(row[column]) or not least <= int(row[column]) <= most:
        raise _Wrong(column, f"'{row[column]}' is not a number from {least} to {most}")
    return int(row[column])
