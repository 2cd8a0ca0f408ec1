# SPDX-License-Identifier: Apache-2.0
"""Values of manifests, which may be anything: as mappings, lists and texts of one line, and where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vgpuctl.config.yaml_reader import Document, KeyPath, LocatedProblem, problems_error
from vgpuctl.errors import InvalidInput
from vgpuctl.model.names import is_visible
from vgpuctl.value import EMPTY_MAPPING

MAX_TEXT = 300


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping, an empty one for anything else."""
    return value if isinstance(value, Mapping) else EMPTY_MAPPING


def as_list(value: object) -> Sequence[Any]:
    """Return a list, an empty one for anything else."""
    return value if isinstance(value, list) else ()


def as_text(value: object, default: str) -> str:
    """Return a name, or another text in one line: what it has of invisible characters would forge lines of messages."""
    if not isinstance(value, str) or not value:
        return default
    return "".join(character if is_visible(character) else "?" for character in value)[:MAX_TEXT]


def as_scalar(value: object) -> str:
    """Return a value as its text in a manifest, where numbers and true may lack their quotes."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_texts(value: object) -> dict[str, str]:
    """Return a mapping of texts."""
    return {str(key): as_scalar(item) for key, item in as_mapping(value).items()}


def as_shown(value: object, limit: int = 100) -> str:
    """Return any value in one line of visible characters."""
    return as_text(" ".join(str(value).split()), "")[:limit]


def mapping_at(document: Document, value: Mapping[str, Any], key: str, path: KeyPath) -> Mapping[str, Any]:
    """Return the mapping that a value has there; an empty one for none. `path`: of the value.

    Raises:
        InvalidInput: it is something else.
    """
    item = value.get(key)
    if item is not None and not isinstance(item, Mapping):
        raise problem_at(document, (*path, key), f"{key}: expected a mapping")
    return item or EMPTY_MAPPING


def list_at(document: Document, value: Mapping[str, Any], key: str, path: KeyPath) -> Sequence[Any]:
    """Return the list that a value has there; an empty one for none. `path`: of the value.

    Raises:
        InvalidInput: it is something else.
    """
    item = value.get(key)
    if item is not None and not isinstance(item, list):
        raise problem_at(document, (*path, key), f"{key}: expected a list")
    return item or ()


def problem_at(document: Document, path: KeyPath, text: str) -> InvalidInput:
    """Return the error for a value."""
    position = document.position(path)
    return problems_error(
        document.name, [LocatedProblem(position.line, position.column, document.format_path(path), text)]
    )


def place_of(document: Document, path: KeyPath) -> str:
    """Return `file:line` of a value."""
    return f"{document.name}:{document.position(path).line}"
