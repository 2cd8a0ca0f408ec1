# SPDX-License-Identifier: Apache-2.0
"""What people read of the failures of several targets: what is true of each of them is said once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.errors import VgpuctlError, named_message


def failure_lines(failed: Mapping[str, VgpuctlError]) -> list[str]:
    """Return the lines, by target; first the reasons that all of them have, if errors have lines of reasons."""
    blocks = {name: _blocks(name, error) for name, error in failed.items()}
    first, *others = blocks.values() or [[]]
    shared = [block for block in first[1:] if all(block in other for other in others)] if others else []
    lines = ["each of them:", *_indented(shared)] if shared else []
    for name, error in failed.items():
        (title,), *own = blocks[name]
        own = [block for block in own if block not in shared]
        if own or not shared:
            lines += [f"{title}   [{error.code}]", *_indented(own)]
        if error.hint:
            lines.append(f"  hint: {error.hint}")
    return lines


def _blocks(name: str, error: VgpuctlError) -> list[list[str]]:
    """Return an error's message: its first line, and the others with the indented lines that follow each."""
    title, *more = named_message(name, error.message).splitlines() or [name]
    blocks = [[title]]
    for line in more:
        if line.startswith(" ") and len(blocks) > 1:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return blocks


def _indented(blocks: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for block in blocks for line in block]
