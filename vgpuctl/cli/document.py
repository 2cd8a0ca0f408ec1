# SPDX-License-Identifier: Apache-2.0
"""The documents for programs: one per run, of schema `vgpuctl/1`, as JSON or the same as YAML."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vgpuctl.cli.streams import escape_invisible, supports_unicode
from vgpuctl.model.outcome import AnyResult, QueryResult
from vgpuctl.model.results import ABSENT
from vgpuctl.value import Value

SCHEMA = "vgpuctl/1"
_PLAIN_YAML = re.compile(r"[A-Za-z_/][\w./+@-]*(?: [\w./+@-]+)*", re.ASCII)
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
_SURROGATE = re.compile("[\ud800-\udfff]")


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


def text(document: Mapping[str, object], output: str = "json") -> str:
    """Return a document as the text to print: JSON, or the same as YAML."""
    if output == "yaml":
        return _yaml_text(to_json_value(document))
    is_ascii = not supports_unicode(sys.stdout)
    return f"{escape_invisible(json.dumps(to_json_value(document), indent=2, ensure_ascii=is_ascii))}\n"


def _yaml_text(value: object) -> str:
    """Return a value as YAML. Strings that a reader of YAML 1.1 takes for something else are quoted."""
    from ruamel import yaml

    class Representer(yaml.representer.SafeRepresenter):
        """Writes strings so that YAML 1.1 and 1.2 read the same."""

        def represent_str(self, data: str) -> Any:
            """Quote all but words and paths."""
            is_plain = _PLAIN_YAML.fullmatch(data) is not None and data.lower() not in _YAML_WORDS
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if is_plain else '"')

        def ignore_aliases(self, data: Any) -> bool:
            """Write a value as often as it occurs."""
            return True

    Representer.add_representer(str, Representer.represent_str)
    writer: Any = yaml.YAML(typ="safe", pure=True)  # its stubs know no type but None for allow_unicode
    writer.Representer = Representer
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False
    writer.width = sys.maxsize
    stream = io.StringIO()
    shown = json.dumps(value, ensure_ascii=False)
    writer.allow_unicode = supports_unicode(sys.stdout) and escape_invisible(shown) == shown
    writer.dump(value, stream)
    return stream.getvalue()
