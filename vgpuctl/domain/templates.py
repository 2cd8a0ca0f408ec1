# SPDX-License-Identifier: Apache-2.0
"""The domain templates that come with vgpuctl.

A wheel carries them as `vgpuctl/_templates`; a source tree, an editable install of it too, has them in
`templates/` beside the package. Files of an admin in /etc/vgpuctl/templates are read through the host's
seam, not here.
"""

from __future__ import annotations

import re
from pathlib import Path

SUFFIX = ".xml.j2"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES = (_PACKAGE / "_templates", _PACKAGE.parent / "templates")


def builtin_template(name: str) -> str | None:
    """Return the text of a built-in template by its name without suffix, or None."""
    if not _NAME.fullmatch(name):
        return None
    for place in _PLACES:
        file = place / f"{name}{SUFFIX}"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return None


def builtin_names() -> tuple[str, ...]:
    """Return the names of the built-in templates, sorted."""
    found = {file.name.removesuffix(SUFFIX) for place in _PLACES for file in place.glob(f"*{SUFFIX}")}
    return tuple(sorted(found))
