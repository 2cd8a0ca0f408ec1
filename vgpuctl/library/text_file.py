# SPDX-License-Identifier: Apache-2.0
"""Reads the texts that users name: specs, host.yaml files, user-data. A pipe or a device cannot hold a command up."""

from __future__ import annotations

import difflib
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.config.not_text import not_utf8_error
from vgpuctl.errors import FileNeeded, InvalidInput, NotFound
from vgpuctl.regular_file import MAX_BYTES, read_regular_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from vgpuctl.ports.host import Host


def display_name(path: str) -> str:
    """Return what messages call a path; `-` is standard input."""
    return "standard input" if path == "-" else path


def command_path(path: str) -> str:
    """Return what commands call a path, before it is quoted: nothing for standard input, and never an option."""
    return "" if path == "-" else f"./{path}" if path.startswith("-") else path


VM_KIND = "VM"
"""A file about VMs of another hypervisor, which `foreign_files` reads."""
STREAMED_KINDS = ("spec", "host.yaml", "import", "manifest", "fleet", "call", VM_KIND)
"""Kinds of files that may come from standard input or a pipe."""


def read_given_text(host: Host, path: str, file_kind: str = "spec") -> str:
    """Return the text of a file that the caller names: from this machine, or as a caller elsewhere sent it.

    Raises:
        FileNeeded: the caller has to send it.
        InvalidInput, NotFound: it cannot be read.
    """
    if host.given_files is None:
        return read_text(path, file_kind)
    if path not in host.given_files:
        raise FileNeeded(
            f"{display_name(path)}: the {file_kind} file is not read on this host: send its text with the request",
            path=path,
            file_kind=file_kind,
        )
    return host.given_files[path].replace("\r\n", "\n")


def read_text(path: str, file_kind: str = "spec") -> str:
    """Return the text of a file; messages call it `file_kind`. Of an OVA with VMs it is the text of its OVF."""
    if file_kind == VM_KIND:
        from vgpuctl.library import foreign_files, ova_file

        decode: Callable[[bytes], str] = partial(foreign_files.decode_vm_text, path=path)
        if path != "-" and ova_file.is_ova(path):
            return foreign_files.read_ova_text(path)
    else:
        decode = _decode_utf8
    try:
        content = _read_bytes(path) if file_kind in STREAMED_KINDS else read_regular_file(path)
        if len(content) > MAX_BYTES:
            raise InvalidInput(
                f"{display_name(path)} is larger than {MAX_BYTES >> 10} KiB, which no {file_kind} is",
                path=display_name(path),
            )
        return decode(content)
    except FileNotFoundError as exc:
        hint = f"give the path of the {file_kind} file" + (
            ", or - to read it from standard input" if file_kind in STREAMED_KINDS else ""
        )
        hint = _suggest_file(path) + hint
        raise NotFound(f"there is no {file_kind} file {path}", hint=hint, path=path) from exc
    except UnicodeDecodeError as exc:
        raise not_utf8_error(display_name(path), command_path(path), exc.object, exc.start) from exc
    except OSError as exc:
        hint = f"ls -ld {path}" if path != "-" else "specify the file: -f SPEC"
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}", hint=hint, errno=exc.errno, path=path) from exc


def _decode_utf8(content: bytes) -> str:
    return content.decode("utf-8").replace("\r\n", "\n")


def _suggest_file(path: str) -> str:
    """Return the most similar name in a file's directory as a question, or nothing."""
    folder, name = os.path.split(path)
    try:
        matches = difflib.get_close_matches(name, os.listdir(folder or "."), 1, 0.7)
    except OSError:
        matches = []
    return f"did you mean {os.path.join(folder, matches[0])}? " if matches else ""


def _read_bytes(path: str) -> bytes:
    """Read at most one byte more than allowed: enough to see that the input is too large."""
    if path == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)
