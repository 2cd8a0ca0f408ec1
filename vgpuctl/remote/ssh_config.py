# SPDX-License-Identifier: Apache-2.0
"""The text of ssh_config: the user's file, then the system's, with Include lines replaced by the included files.

paramiko's reader does not support Include, and Debian's /etc/ssh/ssh_config begins with one.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator

from vgpuctl.errors import InvalidInput

USER_CONFIG = "~/.ssh/config"
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
MAX_INCLUDE_DEPTH = 16
"""ssh's own limit for includes within includes (READCONF_MAX_DEPTH of its readconf.c)."""
_KEYWORD = re.compile(r"\s*(\w+)\s*(?:=\s*|\s+)(.*\S)\s*", re.ASCII)


def read_ssh_config(read_file: Callable[[str], str | None]) -> str:
    """Return the text of both files; `read_file` returns a file's text, None if it does not exist.

    Raises:
        InvalidInput: they include one another in a loop.
    """
    lines: list[str] = []
    for path in (USER_CONFIG, SYSTEM_CONFIG):
        lines += ["Host *", *_lines(os.path.expanduser(path), read_file, 0)]
    return "\n".join(lines) + "\n"


def _lines(path: str, read_file: Callable[[str], str | None], depth: int) -> Iterator[str]:
    if depth > MAX_INCLUDE_DEPTH:
        raise InvalidInput(f"{path}: ssh_config files include one another more than {MAX_INCLUDE_DEPTH} deep")
    block = "Host *"
    for line in (read_file(path) or "").splitlines():
        match = _KEYWORD.fullmatch(line)
        keyword = match[1].lower() if match else ""
        if match and keyword == "include":
            for pattern in match[2].split():
                for included in sorted(glob.glob(_include_path(pattern.strip('"'), path))):
                    yield from _lines(included, read_file, depth + 1)
            yield block  # a Host block of an included file ends with that file
            continue
        if keyword in ("host", "match"):
            block = line
        yield line


def _include_path(pattern: str, path: str) -> str:
    """Return the path of an included file: relative to /etc/ssh or to the user's ~/.ssh (ssh_config(5))."""
    base = "/etc/ssh" if path.startswith("/etc/ssh/") else os.path.expanduser("~/.ssh")
    return os.path.join(base, os.path.expanduser(pattern))
