# SPDX-License-Identifier: Apache-2.0
"""The JSON documents: one per run, of schema `vgpuctl/1`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence

from vgpuctl.cli.streams import escape_invisible, supports_unicode
from vgpuctl.model.outcome import AnyResult, QueryResult
from vgpuctl.model.results.fields import ABSENT
from vgpuctl.value import Value

SCHEMA = "vgpuctl/1"
_SURROGATE = re.compile("[\ud800-\udfff]")


def success_text(kind: str, result: AnyResult) -> str:
    """Return the document of a command that worked."""
    return text(
        {
            "schema": SCHEMA,
            "kind": kind,
            "ok": True,
            "changed": result.changed,
            "data": result_data(result),
            "warnings": result.warnings,
        }
    )


def failure_text(
    kind: str,
    error: Mapping[str, object],
    *,
    changed: bool,
    data: object = None,
    warnings: Sequence[str] = (),
) -> str:
    """Return the document of a command that failed; `changed` when something is left on the host.

    `data` is present if the rest is still useful, such as the results of other hosts.
    """
    return text(failure_body(kind, error, changed=changed, data=data, warnings=warnings))


def failure_body(
    kind: str,
    error: Mapping[str, object],
    *,
    changed: bool,
    data: object = None,
    warnings: Sequence[str] = (),
) -> dict[str, object]:
    """Return the document of `failure_text` as a dict."""
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


def to_json_value(value: object) -> object:
    """Return `value` converted to JSON's own types."""
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


def text(document: Mapping[str, object]) -> str:
    """Return a document as the text to print."""
    return (
        escape_invisible(json.dumps(to_json_value(document), indent=2, ensure_ascii=not supports_unicode(sys.stdout)))
        + "\n"
    )
