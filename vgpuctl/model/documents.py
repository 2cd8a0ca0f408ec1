# SPDX-License-Identifier: Apache-2.0
"""The documents for programs, of schema `vgpuctl/1`: what `--json` prints and the host agent answers, as values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vgpuctl.errors import FileFailed, Interrupted, VgpuctlError, mount_point
from vgpuctl.model.outcome import AnyResult, Outcome, QueryResult
from vgpuctl.model.results import ABSENT
from vgpuctl.value import EMPTY_MAPPING, Value

SCHEMA = "vgpuctl/1"
LEFT_HINT = "'vgpuctl reconcile-host' finishes or undoes what is left"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Failure(Value):
    """What is reported about a failure, as text and as JSON. `result`: what succeeded before it failed."""

    code: str
    message: str
    status: int
    hint: str | None = None
    facts: Mapping[str, object] = EMPTY_MAPPING
    undone: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    traceback: str | None = None
    changed: bool = False
    result: AnyResult | None = None


def failure_of(error: VgpuctlError) -> Failure:
    """Return what is reported about an error; of a failed file also the file system."""
    status, hint = error.status, error.hint
    if isinstance(error, Interrupted):
        status = 128 + error.signal_number
        hint = hint or (LEFT_HINT if error.left else None)
    facts = {name: to_json_value(value) for name, value in error.facts.items()}
    path = error.facts.get("path")
    if isinstance(error, FileFailed) and isinstance(path, str) and path.startswith("/"):
        facts["file_system"] = mount_point(path)
    return Failure(
        error.code,
        error.message,
        status,
        hint,
        facts,
        tuple(error.undone),
        tuple(error.left),
        changed=error.changed,
        result=error.result if isinstance(error.result, (Outcome, QueryResult)) else None,
    )


def failure_document(failure: Failure, kind: str) -> dict[str, object]:
    """Return the document of a failure; `changed` when something is left on the host."""
    changed = failure.changed or bool(failure.left)
    error = {
        "code": failure.code,
        "message": failure.message,
        "hint": failure.hint,
        "facts": failure.facts,
        "exit_status": failure.status,
        "undone": failure.undone,
        "left": failure.left,
    }
    if failure.result is None:
        return failure_body(kind, error, changed=changed)
    return failure_body(
        kind, error, changed=changed, data=result_data(failure.result), warnings=failure.result.warnings
    )


def read_failure(error: Mapping[str, object]) -> Failure:
    """Return the failure that a document reports; another vgpuctl made it, so no field of it is certain."""
    hint, facts, status = error.get("hint"), error.get("facts"), error.get("exit_status")
    return Failure(
        str(error.get("code", "failed")),
        str(error.get("message", "")),
        status if isinstance(status, int) else 1,
        None if hint is None else str(hint),
        dict(facts) if isinstance(facts, dict) else {},
        texts_of(error.get("undone")),
        texts_of(error.get("left")),
    )


def texts_of(value: object) -> tuple[str, ...]:
    """Return the items of a list of another vgpuctl as texts; nothing for what is no list."""
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def success_body(kind: str, result: AnyResult) -> dict[str, object]:
    """Return the document of a command that worked."""
    return {
        "schema": SCHEMA,
        "kind": kind,
        "ok": True,
        "changed": result.changed,
        "data": result_data(result),
        "warnings": result.warnings,
    }


def failure_body(
    kind: str,
    error: Mapping[str, object],
    *,
    changed: bool,
    data: object = None,
    warnings: Sequence[str] = (),
) -> dict[str, object]:
    """Return the document of a command that failed; `changed` when something is left on the host.

    `data` is present if the rest is still useful, such as the results of other hosts.
    """
    data_field = {} if data is None else {"data": data}
    warning_list = list(warnings)
    return {
        "schema": SCHEMA,
        "kind": kind,
        "ok": False,
        "changed": changed,
        "error": error,
        **data_field,
        "warnings": warning_list,
    }


def result_data(result: AnyResult) -> object:
    """Return the `data` of a result."""
    if isinstance(result, QueryResult):
        return result.data
    work = {"steps": result.steps, "notes": result.notes, "dry_run": result.dry_run}
    record = to_json_value(result.data)
    return {**record, **work} if isinstance(record, dict) else work


def to_json_value(value: object) -> Any:
    """Return `value` converted to JSON's own types; null for a number that JSON cannot write: infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", str(value))
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return [to_json_value(item) for item in sorted(value, key=str)]
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    if isinstance(value, Value):
        fields = ((name.rstrip("_"), getattr(value, name)) for name in value._fields)
        return {name: to_json_value(field) for name, field in fields if field is not ABSENT}
    return str(value)
