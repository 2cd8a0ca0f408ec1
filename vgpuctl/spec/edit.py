# SPDX-License-Identifier: Apache-2.0
"""Change what host.yaml says of one GPU, text in and text out: comments, order and quotes stay as people wrote them.

The result is read by the same parser as every host.yaml before it is handed back, so that nothing is ever written
that vgpuctl itself would refuse.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from vgpuctl.errors import InvalidInput
from vgpuctl.model.address import normal_pci
from vgpuctl.spec.host import VERSION, parse_host_spec

_WIDEST = 4096


def edit_gpu(text: str | None, address: str, changes: Mapping[str, object], name: str) -> str:
    """Return host.yaml with some keys of one GPU set, or taken out where the new value is None.

    `text` None: there is no file yet. A GPU of which nothing is said any more is taken out. `name` is the file's path,
    for messages. A change that says what is there already returns the text as it was.

    Raises:
        InvalidInput: the text, or what would become of it, is no host.yaml.
    """
    if text is not None:
        known = parse_host_spec(text, name).gpus.get(address)
        now = {key: getattr(known, key, None) or None for key in changes}
        if now == {key: value or None for key, value in changes.items()}:
            return text
    yaml = _writer(text or "")
    document = yaml.load(text) if text is not None else CommentedMap(version=VERSION)
    gpus = document.get("gpus")
    if gpus is None:
        gpus = document["gpus"] = CommentedMap()
    spelled = next((key for key in gpus if normal_pci(str(key)) == address), None)
    entry = gpus.get(spelled) if spelled is not None else None
    if entry is None:
        spelled = DoubleQuotedScalarString(address) if spelled is None else spelled
        entry = gpus[spelled] = CommentedMap()
    _set(entry, changes)
    if not entry:
        del gpus[spelled]
    if not gpus:
        del document["gpus"]
    written = io.StringIO()
    yaml.dump(document, written)
    return _checked(written.getvalue(), address, changes, name)


def _set(entry: Any, changes: Mapping[str, object]) -> None:
    for key, value in changes.items():
        if value is None:
            entry.pop(key, None)
        else:
            entry[key] = value


def _checked(text: str, address: str, changes: Mapping[str, object], name: str) -> str:
    """Read the new text as every host.yaml is read, and see that it says what was meant."""
    said = parse_host_spec(text, name).gpus.get(address)
    for key, value in changes.items():
        if (getattr(said, key, None) or None) != (value or None):
            raise InvalidInput(
                f"{name} cannot be changed by a program: it would not say '{key}: {value}' for {address} afterwards",
                hint="write it by hand, one key on a line",
                path=name,
            )
    return text


def _writer(text: str) -> YAML:
    """Return a writer that keeps quotes and does not fold lines; it indents as the text does."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = _WIDEST
    yaml.explicit_start = text.lstrip().startswith("---")
    nested = next((line for line in text.splitlines() if line.startswith(" ") and line.strip()[:1] not in "#"), "  ")
    yaml.indent(mapping=len(nested) - len(nested.lstrip()), sequence=4, offset=2)
    return yaml
