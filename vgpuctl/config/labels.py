# SPDX-License-Identifier: Apache-2.0
"""The rules of a VM's labels and of its owner's name. Labels follow Kubernetes' rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vgpuctl.config.rules import as_text
from vgpuctl.errors import InvalidInput
from vgpuctl.model.names import is_visible

LABEL_PATTERN = r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?"
MAX_LABELS = 32
MAX_OWNER_LENGTH = 64


def labels(value: object) -> dict[str, str]:
    """Return labels by key, sorted: from a mapping, from one `key=value` text, or from a list of them.

    Raises:
        ValueError: a label is invalid, or there are too many.
    """
    if isinstance(value, Mapping):
        pairs = [(as_text(key), as_text(entry)) for key, entry in value.items()]
    elif isinstance(value, str | list | tuple):
        pairs = [_split_label(as_text(line)) for line in ([value] if isinstance(value, str) else value)]
    else:
        raise ValueError("expected a mapping (key: value) or a list of key=value")
    if len(pairs) > MAX_LABELS:
        raise ValueError(_too_many(len(pairs)))
    checked: dict[str, str] = {}
    for key, entry in pairs:
        _check_label(key, entry)
        if checked.setdefault(key, entry) != entry:
            raise ValueError(f"the label '{key}' is given twice: {checked[key]} and {entry}")
    return limit_labels(checked)


def limit_labels(checked: Mapping[str, str]) -> dict[str, str]:
    """Return labels, sorted.

    Raises:
        ValueError: there are too many.
    """
    if len(checked) > MAX_LABELS:
        raise ValueError(_too_many(len(checked)))
    return dict(sorted(checked.items()))


def _too_many(count: int) -> str:
    return f"{count} labels are too many: a VM has at most {MAX_LABELS}"


def owner(value: object) -> str:
    """Check the name of a VM's owner: a person or a team.

    Raises:
        ValueError: it is empty, too long, or has characters that cannot be seen.
    """
    text = as_text(value)
    if not text or text != text.strip() or len(text) > MAX_OWNER_LENGTH or not all(map(is_visible, text)):
        raise ValueError(f"{text!a} is not an owner: use 1 to {MAX_OWNER_LENGTH} visible characters, like cad-team")
    return text


def parse_selector(texts: Iterable[str], option: str = "--label") -> dict[str, str]:
    """Return the labels that VMs must have, from `key=value` texts of an option.

    Raises:
        InvalidInput: one of them is not `key=value`, or one key has two values, which no VM has.
    """
    try:
        return labels(tuple(texts))
    except ValueError as error:
        raise InvalidInput(f"{option}: {error}", hint="vgpuctl list-vms --json shows the labels") from error


def parse_changes(value: object) -> dict[str, str | None]:
    """Return label changes: `key=value` sets a label, and `key-` removes it; in a mapping None removes it.

    Raises:
        InvalidInput: one of them is neither.
    """
    changes: dict[str, str | None] = {}
    try:
        for key, entry in _split_changes(value):
            _check_label(key, entry or "")
            if changes.setdefault(key, entry) != entry:
                raise ValueError(f"the label '{key}' is given twice")
    except ValueError as error:
        raise InvalidInput(f"--label: {error}", hint="KEY=VALUE sets a label, and KEY- removes it") from error
    return changes


def _split_changes(value: object) -> list[tuple[str, str | None]]:
    if isinstance(value, Mapping):
        return [(as_text(key), None if entry is None else as_text(entry)) for key, entry in value.items()]
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise ValueError("expected a mapping (key: value) or a list of key=value and key-")
    words = [as_text(text) for text in texts]
    return [(w[:-1], None) if "=" not in w and w.endswith("-") else _split_label(w) for w in words]


def _split_label(text: str) -> tuple[str, str]:
    key, equals, entry = text.partition("=")
    if not equals:
        raise ValueError(f"{text!a} is not a label: write key=value, like team=cad")
    return key, entry


def _check_label(key: str, entry: str) -> None:
    for part, what in ((key, "key"), (entry, "value")):
        if not re.fullmatch(LABEL_PATTERN, part, re.ASCII) and (part or what == "key"):
            raise ValueError(
                f"{part[:99]!a} is not a label's {what}: use at most 63 letters, digits, '.', '_', '/' and '-', "
                "with a letter or digit first and last"
            )
