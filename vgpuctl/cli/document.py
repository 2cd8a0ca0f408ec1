# SPDX-License-Identifier: Apache-2.0
"""The JSON documents: one per run, `vgpuctl/1`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence

from vgpuctl.cli.streams import escaped, is_unicode
from vgpuctl.value import Value, as_dict

SCHEMA = "vgpuctl/1"
_SURROGATE = re.compile("[\ud800-\udfff]")


def success(kind: str, data: object, *, changed: bool, warnings: Sequence[str]) -> str:
    """Return the document of a command that worked."""
    return text(
        {
            "schema": SCHEMA,
            "kind": kind,
            "ok": True,
            "changed": changed,
            "data": data,
            "warnings": list(warnings),
        }
    )


def failure(
    kind: str,
    error: Mapping[str, object],
    *,
    changed: bool,
    data: object = None,
    warnings: Sequence[str] = (),
) -> str:
    """Return the document of a command that failed; `changed` when something is left on the host.

    `data` is there where one failure does not make the rest worthless, as of several hosts.
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
    """Return that document before it is text."""
    more = {} if data is None else {"data": data}
    warned = list(warnings)
    return {"schema": SCHEMA, "kind": kind, "ok": False, "changed": changed, "error": error, **more, "warnings": warned}


def plain(value: object) -> object:
    """Return `value` with nothing in it but JSON's own types."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", str(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return [plain(item) for item in sorted(value, key=str)]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Value):
        return plain(as_dict(value))
    return str(value)


def text(document: Mapping[str, object]) -> str:
    """Return a document as it is printed."""
    return escaped(json.dumps(plain(document), indent=2, ensure_ascii=not is_unicode(sys.stdout))) + "\n"
