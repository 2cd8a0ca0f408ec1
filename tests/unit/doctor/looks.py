# SPDX-License-Identifier: Apache-2.0
"""Looks at hosts as plain values: what a test says is there, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vgpuctl.doctor.catalogue import CHECKS
from vgpuctl.doctor.check import Check, Finding, Folder, Look, Text
from vgpuctl.model.snapshot import Snapshot


def check_of(name: str) -> Check:
    """Return a check by its id."""
    return next(check for check in CHECKS if check.id == name)


def judge(
    name: str,
    snapshot: Snapshot | None = None,
    files: Mapping[str, str | Text] | None = None,
    folders: Mapping[str, Sequence[str] | Folder] | None = None,
    **more: Any,
) -> Finding:
    """Let a check judge a host on which only these files and directories are there."""
    check = check_of(name)
    asked = [check.needs]
    if snapshot is not None and check.needs_of is not None:
        asked.append(check.needs_of(snapshot))
    texts = {path: Text() for needs in asked for path in needs.files}
    lists = {path: Folder() for needs in asked for path in (*needs.folders, *needs.configs)}
    configs = tuple(f"{path}/" for needs in asked for path in needs.configs)
    for path, text in (files or {}).items():
        assert path in texts or path.startswith(configs), f"{name} does not ask for {path}"
        if path not in texts:
            at, _, file = path.rpartition("/")
            lists[at] = Folder(tuple(sorted([*(lists[at].names or ()), file])))
        texts[path] = text if isinstance(text, Text) else Text(text)
    for path, names in (folders or {}).items():
        assert path in lists, f"{name} does not ask for {path}"
        lists[path] = names if isinstance(names, Folder) else Folder(tuple(names))
    return check.judge(Look(snapshot=snapshot, files=texts, folders=lists, **more))


def said(finding: Finding) -> str:
    """Return everything that a finding tells, in one text."""
    return "\n".join((finding.verdict, *finding.evidence, finding.fix or ""))
