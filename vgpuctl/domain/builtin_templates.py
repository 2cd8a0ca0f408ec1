# SPDX-License-Identifier: Apache-2.0
"""The domain templates that come with vgpuctl.

A wheel contains them as `vgpuctl/_templates`; a source tree (also an editable install of it) has them in `templates/`
next to the package. An admin's files in /etc/vgpuctl/templates are read through the host's port, not here.
"""

from __future__ import annotations

import re
from pathlib import Path

TEMPLATE_SUFFIX = ".xml.j2"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_PACKAGE = Path(__file__).resolve().parent.parent
_TEMPLATE_DIRECTORIES = (_PACKAGE / "_templates", _PACKAGE.parent / "templates")


def read_builtin_template(name: str) -> str | None:
    """Return the text of a built-in template by its name without suffix, or None."""
    if not _NAME.fullmatch(name):
        return None
    for directory in _TEMPLATE_DIRECTORIES:
        file = directory / f"{name}{TEMPLATE_SUFFIX}"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return None


def list_builtin_templates() -> tuple[str, ...]:
    """Return the names of the built-in templates, sorted."""
    names = {
        file.name.removesuffix(TEMPLATE_SUFFIX)
        for directory in _TEMPLATE_DIRECTORIES
        for file in directory.glob(f"*{TEMPLATE_SUFFIX}")
    }
    return tuple(sorted(names))
