# SPDX-License-Identifier: Apache-2.0
"""The text of ssh_config: the user's file, then the system's, with what they include in the place of Include.

paramiko's reader does not know Include, and Debian's /etc/ssh/ssh_config begins with one.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator

from vgpuctl.errors import InvalidInput

USER_CONFIG = "~/.ssh/config"
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
DEEPEST = 16
"""ssh's own limit for includes within includes (READCONF_MAX_DEPTH of its readconf.c)."""
_WORD = re.compile(r"\s*(\w+)\s*(?:=\s*|\s+)(.*\S)\s*", re.ASCII)


def read(text_of: Callable[[str], str | None]) -> str:
    """Return the text of both files; `text_of` returns a file's text, None when there is none.

    Raises:
        InvalidInput: they include one another without an end.
    """
    lines: list[str] = []
    for path in (USER_CONFIG, SYSTEM_CONFIG):
        lines += ["Host *", *_lines(os.path.expanduser(path), text_of, 0)]
    return "\n".join(lines) + "\n"


def _lines(path: str, text_of: Callable[[str], str | None], depth: int) -> Iterator[str]:
    if depth > DEEPEST:
        raise InvalidInput(f"{path}: ssh_config files include one another more than {DEEPEST} deep")
    block = "Host *"
    for line in (text_of(path) or "").splitlines():
        found = _WORD.fullmatch(line)
        word = found[1].lower() if found else ""
        if found and word == "include":
            for pattern in found[2].split():
                for included in sorted(glob.glob(_place(pattern.strip('"'), path))):
                    yield from _lines(included, text_of, depth + 1)
            yield block  # what an included file's Host began ends with that file
            continue
        if word in ("host", "match"):
            block = line
        yield line


def _place(pattern: str, path: str) -> str:
    """Return where an included file is: beside the system's files, or in the user's ~/.ssh (ssh_config(5))."""
    base = "/etc/ssh" if path.startswith("/etc/ssh/") else os.path.expanduser("~/.ssh")
    return os.path.join(base, os.path.expanduser(pattern))
