# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call as a client sends them, and the files that they name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from vgpuctl.config.vm_spec import NUMBERED_VM_SHAPE, VM_SHAPE, parse_vm_spec
from vgpuctl.errors import VgpuctlError

_PLACEHOLDER = re.compile(r"\\\{[^{}]*\\\}")


def names_file(path: str, arguments: Mapping[str, object], files: Mapping[str, str]) -> bool:
    """Return whether a request names a file: an argument that takes one, or the spec file that it sent.

    A host that asks for another file is hostile: it would get what only the caller can read.
    """
    named = [arguments.get(name) for name in ("file", "path", "cloud_init", "network_config")]
    files_of_vms = arguments.get("files")
    named += files_of_vms if isinstance(files_of_vms, (list, tuple)) else []
    file = arguments.get("file")
    if isinstance(file, str) and file in files:
        for shape in (VM_SHAPE, NUMBERED_VM_SHAPE):
            with suppress(VgpuctlError):  # no spec, such as a host.yaml: it names no files
                spec = parse_vm_spec(files[file], file, shape)
                named += [spec.get("cloud_init"), spec.get("network_config")]
    texts = [text for text in named if isinstance(text, str)]
    return any(re.fullmatch(_PLACEHOLDER.sub(r"[0-9]+", re.escape(text)), path) for text in texts)
