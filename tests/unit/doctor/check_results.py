# SPDX-License-Identifier: Apache-2.0
"""Snapshots of hosts as plain values: they contain only what a test puts in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vgpuctl.doctor import CHECKS
from vgpuctl.doctor.check import Check, CheckContext, FileContent, Finding, FolderListing, Verdict
from vgpuctl.model.snapshot import Snapshot

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL
UNKNOWN, NOT_APPLICABLE = Verdict.UNKNOWN, Verdict.NOT_APPLICABLE


def check_of(name: str) -> Check:
    """Return a check by its id."""
    return next(check for check in CHECKS if check.id == name)


def run_check(
    name: str,
    snapshot: Snapshot | None = None,
    files: Mapping[str, str | FileContent] | None = None,
    folders: Mapping[str, Sequence[str] | FolderListing] | None = None,
    **more: Any,
) -> Finding:
    """Run a check on a host that has only these files and directories."""
    check = check_of(name)
    asked = [check.paths]
    if snapshot is not None and check.find_paths is not None:
        asked.append(check.find_paths(snapshot))
    texts = {path: FileContent() for needs in asked for path in needs.files}
    lists = {path: FolderListing() for needs in asked for path in (*needs.folders, *needs.configs)}
    configs = tuple(f"{path}/" for needs in asked for path in needs.configs)
    for path, text in (files or {}).items():
        assert path in texts or path.startswith(configs), f"{name} does not ask for {path}"
        if path not in texts:
            at, _, file = path.rpartition("/")
            lists[at] = FolderListing(tuple(sorted([*(lists[at].names or ()), file])))
        texts[path] = text if isinstance(text, FileContent) else FileContent(text)
    for path, names in (folders or {}).items():
        assert path in lists, f"{name} does not ask for {path}"
        lists[path] = names if isinstance(names, FolderListing) else FolderListing(tuple(names))
    return check.run(CheckContext(snapshot=snapshot, files=texts, folders=lists, **more))


def finding_text(finding: Finding) -> str:
    """Return the whole text of a finding."""
    return "\n".join((finding.verdict, *finding.evidence, finding.fix or ""))


class Case(NamedTuple):
    """A host that a check sees, the verdict on it, and words of its evidence and fix."""

    check: str
    verdict: Verdict
    words: tuple[str, ...]
    seen: dict[str, Any]


def case(check: str, verdict: Verdict, *words: str, **seen: Any) -> Case:
    """Return a case; `seen` are the arguments of `run_check`."""
    return Case(check, verdict, words, seen)


def assert_verdict(one: Case) -> None:
    """Check that the verdict on a host is as expected, and that the finding has all words."""
    finding = run_check(one.check, **one.seen)
    text = finding_text(finding)
    assert finding.verdict is one.verdict, text
    assert [word for word in one.words if word not in text] == [], text
