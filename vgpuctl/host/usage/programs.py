# SPDX-License-Identifier: Apache-2.0
"""Programs of the operator that print the use of a maker's GPUs as JSON: host.yaml's `agent: readers:`.

A program is root's file in root's directories, runs as the user that host.yaml names, without input, with an empty
environment, in a session of its own, and has a deadline. What it prints is checked as input from anybody:

    {"gpus": [{"address": "0000:3b:00.0", "memory_used_bytes": 1073741824}], "vgpus": []}

The fields are those of `GpuUse` and `VgpuUse`; `address` and `gpu` are PCI addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vgpuctl.host.trusted_path import require_trusted_program
from vgpuctl.host.usage.processes import read_output
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.result_reader import Mismatch, read_value
from vgpuctl.model.usage import MAX_VALUE, EngineUse, GpuUse, ReaderProgram, VgpuUse
from vgpuctl.value import Value, field_names, replace

MAX_OUTPUT_BYTES = 1 << 20
MAX_ROWS, MAX_KEYS = 4096, 40
_MAX_TEXT = 200


class _Printed(Value):
    """What a program prints."""

    gpus: tuple[GpuUse, ...] = ()
    vgpus: tuple[VgpuUse, ...] = ()


def run_programs(
    programs: tuple[ReaderProgram, ...],
    known: frozenset[str] = frozenset(),
    require_trusted: Callable[[str], None] = require_trusted_program,
) -> tuple[list[GpuUse], list[VgpuUse], dict[str, str]]:
    """Return what programs print, and why others gave nothing, by name. `known`: GPUs whose use is known already."""
    gpus: list[GpuUse] = []
    vgpus: list[VgpuUse] = []
    failed: dict[str, str] = {}
    for program in programs:
        try:
            require_trusted(program.path)
            output = read_output(
                [program.path],
                user=program.user,
                deadline_seconds=program.deadline_seconds,
                max_bytes=MAX_OUTPUT_BYTES,
            )
            printed = _parse(program, output)
        except (OSError, ValueError) as error:
            failed[program.name] = f"{program.path}: {' '.join(str(error).split())[:_MAX_TEXT]}"
            continue
        gpus += [gpu for gpu in printed.gpus if gpu.address not in known]
        vgpus += [vgpu for vgpu in printed.vgpus if vgpu.gpu not in known]
        known |= {gpu.address for gpu in printed.gpus}
    return gpus, vgpus, failed


def _parse(program: ReaderProgram, output: bytes) -> _Printed:
    """Check what a program printed.

    Raises:
        ValueError: it is not the JSON that it should be.
    """
    document: Any = parse_json(output.decode("utf-8", "strict"))
    _refuse_impossible(document)
    if not isinstance(document, dict) or not set(document) <= {"gpus", "vgpus"}:
        raise ValueError("it does not print a JSON object with gpus and vgpus")
    rows = {name: document.get(name, []) for name in ("gpus", "vgpus")}
    if not all(isinstance(part, list) for part in rows.values()) or sum(map(len, rows.values())) > MAX_ROWS:
        raise ValueError(f"gpus and vgpus are lists, of {MAX_ROWS} together at most")
    defaults = {"gpus": GpuUse("", program.name), "vgpus": VgpuUse("", ())}
    whole = {name: [_complete(row, defaults[name]) for row in part] for name, part in rows.items()}
    try:
        printed: _Printed = read_value(_Printed, whole)
    except Mismatch as error:
        raise ValueError(str(error)) from None
    return replace(
        printed,
        gpus=tuple(replace(gpu, address=_address(gpu.address), source=program.name) for gpu in printed.gpus),
        vgpus=tuple(replace(vgpu, gpu=_address(vgpu.gpu)) for vgpu in printed.vgpus),
    )


def _refuse_impossible(value: Any) -> None:
    """Check every value, however deep.

    Raises:
        ValueError: a number is negative, infinite or none; a text is too long or has control characters; a mapping is
            too large: each of its keys is a series.
    """
    if isinstance(value, dict):
        if len(value) > MAX_KEYS:
            raise ValueError(f"a mapping has more than {MAX_KEYS} keys")
        for key, item in value.items():
            _refuse_impossible(key)
            _refuse_impossible(item)
    elif isinstance(value, list):
        for item in value:
            _refuse_impossible(item)
    elif isinstance(value, str) and (len(value) > _MAX_TEXT or not value.isprintable()):
        raise ValueError(f"a text is too long, or has control characters: {value[:40]!a}")
    elif isinstance(value, (int, float)) and not 0 <= value < MAX_VALUE:
        raise ValueError(f"{value!r} is not a possible value")


def _complete(row: Any, default: Value) -> Any:
    """Return a row with what it leaves out, as a source that does not know it.

    Raises:
        ValueError: it has an unknown field.
    """
    if not isinstance(row, dict):
        return row
    unknown = sorted(set(row) - set(field_names(default)))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!a}")
    whole = {**to_json_value(default), **row}
    if isinstance(row.get("engines"), dict):
        whole["engines"] = _complete(row["engines"], EngineUse())
        if any(isinstance(busy, (int, float)) and busy > 1 for busy in row["engines"].values()):
            raise ValueError("engines: a ratio is between 0 and 1")
    return whole


def _address(text: str) -> str:
    address = normalize_pci(text)
    if address is None:
        raise ValueError(f"'{text[:40]}' is not a PCI address")
    return address
