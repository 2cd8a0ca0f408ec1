# SPDX-License-Identifier: Apache-2.0
"""How guests with Windows join domains: an entry of the host for each, /etc/vgpuctl/domain-joins/NAME.

It is a folder with one file COMPUTER.blob for each computer, or a program that prints the blob of the computer that is
its only argument. A blob is what `djoin /provision /savefile` writes: base64, as UTF-16 with a byte order mark and a
NUL at the end, or as plain text (Microsoft Learn, "Offline Domain Join (Djoin.exe) Step-by-Step Guide", and
NetProvisionComputerAccount, whose text form it is). It has the password of the computer's account, so no error quotes
what is in it.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re

from vgpuctl.config.rules import as_text

DOMAIN_JOIN_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
MAX_BLOB = 64 << 10
"""Characters of base64. A blob has a few thousand; with certificates and policies it has more."""
MAX_BLOB_BYTES = 2 * MAX_BLOB + 64
"""The largest file, or output of a program: UTF-16, with a few line ends."""
_LEAST_BLOB = 64
"""Less has no room for a computer's name, a domain and a password."""
_COMPUTER = re.compile(r"(?!-)(?![0-9]+\Z)[A-Za-z0-9-]{1,15}(?<!-)", re.ASCII)
_WHITE_SPACE = " \t\r\n"


def domain_join_name(value: object) -> str:
    """Check the name of a domain, that of its entry; or `none`."""
    text = as_text(value)
    if not re.fullmatch(DOMAIN_JOIN_PATTERN, text, re.ASCII):
        raise ValueError(f"{text!a} is not the name of a domain's entry: letters, digits, '_' and '-' only")
    return text


def is_computer_name(name: str) -> bool:
    """Return whether a Windows computer can have this name: NetBIOS names have 15 characters (Microsoft, KB 909264)."""
    return _COMPUTER.fullmatch(name) is not None


def parse_blob(data: bytes) -> str:
    """Return the base64 of a file or of what a program printed, in one line.

    Raises:
        ValueError: it is no such thing.
    """
    if len(data) > MAX_BLOB_BYTES:
        raise ValueError(f"it has more than {MAX_BLOB_BYTES} bytes")
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "ascii"
    text, problem = "", ""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:  # which has the bytes in it
        problem = "it is neither plain text nor UTF-16"
    if problem:
        raise ValueError(problem)
    lines = text.removesuffix("\0").strip(_WHITE_SPACE).splitlines()
    if not lines or not lines[0]:
        raise ValueError("it is empty")
    if len(lines) > 1:
        raise ValueError(f"it has {len(lines)} lines, and a blob is one")
    (blob,) = lines
    if not _LEAST_BLOB <= len(blob) <= MAX_BLOB:
        raise ValueError(f"it has {len(blob)} characters, and a blob {_LEAST_BLOB} to {MAX_BLOB}")
    try:
        base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        problem = "it is no base64"
    if problem:
        raise ValueError(problem)
    return blob
