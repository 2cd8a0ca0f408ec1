# SPDX-License-Identifier: Apache-2.0
"""The commands of vgpuctl in hints and in the fixes of doctor: which they are, and whether they run as pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from shutil import rmtree

from tests.changed.site import Ran, Site
from vgpuctl.cli.command_table import COMMANDS

_START = re.compile(r"(?<![\w/-])vgpuctl (?=[a-z])")
_END = re.compile(r"[,;()\n]|[.:](?=\s|$)")
_OR = re.compile(r"[;,]? or (?=vgpuctl )")
_PROSE = re.compile(r"[a-z]+")
_ARGUMENTS = frozenset(
    {"web", "legacy", "new", "vgpu", "sriov", "passthrough", "unmanaged", "on", "off", "running", "always"}
    | {"address", "guest", "functions", "partition"}
)
"""The lowercase words that are arguments in the hints on these hosts; any other one begins the sentence's next part."""
_PLACEHOLDER = re.compile(r"(?<![\w/.-])(?:[A-Z]{2,}|N|\.\.\.|…)(?![\w/.-])")
READING = ("list-", "show-", "explain", "doctor", "fits", "plan-", "log", "diff", "wait")
"""How the commands begin that only show something: pasting one does not fix anything, and need not."""


def commands_in(text: str | None) -> Iterator[tuple[str, ...]]:
    """Yield the command lines of vgpuctl in a text, without the program's name; none with a placeholder."""
    for start in _START.finditer(text or ""):
        rest = (text or "")[start.end() :]
        if (text or "")[: start.start()].endswith("'"):
            rest = rest.partition("'")[0]
        line = rest[: end.start()] if (end := _END.search(rest)) else rest
        try:
            words = tuple(shlex.split(line))
        except ValueError:
            words = (line,)
        prose = (n for n, word in enumerate(words) if n and _PROSE.fullmatch(word) and word not in _ARGUMENTS)
        words = words[: next(prose, len(words))]
        if words and words[0] in COMMANDS and not _PLACEHOLDER.search(" ".join(words)):
            yield words


def other_ways(text: str) -> set[tuple[str, ...]]:
    """Return the command lines of a text that it offers in place of its first ones."""
    first, *others = _OR.split(text)
    return {words for part in others for words in commands_in(part)}.difference(commands_in(first))


def _run_on_copy(site: Site, words: tuple[str, ...]) -> Ran:
    copied = site.copy(site.directory.with_name("other-way"))
    ran = copied.run(*words)
    rmtree(copied.directory)
    site.ran.append(ran)
    return ran


def texts_of(ran: Ran) -> list[str]:
    """Return every hint and fix of a command: of its error, of its targets, and of what failed."""
    return [text for text in _hints(ran.document) if text]


def _hints(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("hint", "fix") and isinstance(inner, str):
                yield inner
            else:
                yield from _hints(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _hints(inner)


def is_reading(words: tuple[str, ...]) -> bool:
    """Say whether a command only shows something."""
    return words[0].startswith(READING) or "--dry-run" in words


MAX_DEPTH = 4


def follow(site: Site, first: Ran) -> list[str]:
    """Paste what the command's hints say, then what the hints of those say. Return what is wrong with the hints.

    After a command of its own hint worked, the first command must not fail in the same way with the same hint. What
    doctor adds to an error may fix something else. What a hint gives as another way ("A; or B") runs on a copy of the
    host on which A did not run.
    """
    own = set(commands_in(first.error.get("hint")))
    wrong: list[str] = []
    tried: set[tuple[str, ...]] = {first.words}
    current = first
    for _ in range(MAX_DEPTH):
        lines = [words for text in texts_of(current) for words in commands_in(text)]
        only = [text for text in texts_of(current) if text.startswith(current.line) and set(lines) == {current.words}]
        wrong += [f"{current.line}: its hint is itself: {text}" for text in only]
        fresh = [words for words in dict.fromkeys(lines) if words not in tried]
        if not fresh:
            break
        tried.update(fresh)
        others = {words for text in texts_of(current) for words in other_ways(text)}.intersection(fresh)
        for words in sorted(others):
            wrong += refused(current, _run_on_copy(site, words))
        for words in (words for words in fresh if words not in others):
            pasted = site.run(*words)
            wrong += refused(current, pasted)
            current = pasted
            if pasted.status or is_reading(words) or words not in own:
                continue
            again = site.run(*first.words) if first.status else first
            if again.status and (_text_of(again), texts_of(again)) == (_text_of(first), texts_of(first)):
                wrong.append(f"{first.line}: its hint {pasted.line} works, and it fails as before: {_text_of(again)}")
    return wrong


def refused(before: Ran, pasted: Ran) -> list[str]:
    """Return what is wrong if a command from a hint was not accepted."""
    if pasted.status != 2:
        return []
    return [f"{before.line}: its hint {pasted.line} exits with 2: {_text_of(pasted)}"]


def _text_of(ran: Ran) -> str:
    return f"{ran.error.get('message') or ran.err.strip()} (hint: {ran.error.get('hint')})"
