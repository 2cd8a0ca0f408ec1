# SPDX-License-Identifier: Apache-2.0
"""Recognizes a file's content where the file's path is expected; content may hold passwords, so nothing quotes it."""

from __future__ import annotations

import re

_CONTENT = re.compile(r"[\x00-\x1f\x7f]|:(\s|$)|^\s*[#{\[<%]|^[A-Za-z0-9+/=_-]{120,}$")
"""Several lines, or another control character; `key: value`; the first character of cloud-config, JSON, XML or a
template; a long text in base64."""

CONTENT_OPTIONS = ("--cloud-init", "--network-config", "--user-data")
"""Options that take a path, and that people give the content of the file."""


def is_file_content(text: str) -> bool:
    """Return whether a text looks like the content of a file, not like a path or a name."""
    return _CONTENT.search(text) is not None
