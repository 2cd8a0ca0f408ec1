# SPDX-License-Identifier: Apache-2.0
"""The pages of host.yaml as a whole: what differs, and what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vgpuctl.cli.pages import Data, Page, dry_run
from vgpuctl.cli.tables import Block, Table


def _applied(data: Data) -> Page:
    if data["dry_run"]:
        return Page([*dry_run(data).blocks, *_removed(data, "would go from host.yaml:")])
    if not data["steps"]:
        return Page(["the host is as host.yaml says; nothing to do"])
    lines = [f"{gpu['address']}: {_words(gpu['after'])}" for gpu in data["gpus"] if gpu["steps"] or gpu["differences"]]
    lines += [f"{row['key']}: {_value(row['wanted'])}" for row in data["settings"]]
    lines += _removed(data, "gone from host.yaml:")
    return Page([*lines, f"the host is as host.yaml says; steps done: {len(data['steps'])}"])


def _removed(data: Data, title: str) -> list[str]:
    """Return what goes away, an entry in a line; nothing where nothing does."""
    rows = [f"  {row['entry']}: {_value(row['keys'])}" for row in data.get("removed", ())]
    return [title, *rows] if rows else []


def _differs(data: Data) -> Page:
    rows = [(gpu["address"], row) for gpu in data["gpus"] for row in gpu["differences"]]
    rows += [("host", row) for row in data["settings"]]
    removed = _removed(data, "would go from host.yaml:")
    if not rows and not removed and not any(gpu["steps"] for gpu in data["gpus"]):
        return Page(["the host is as asked for"])
    cells = tuple((where, row["key"], _value(row["is"]), _value(row["wanted"])) for where, row in rows)
    blocks: list[Block] = [Table(("GPU", "KEY", "IS", "WANTED"), cells)] if cells else []
    if data["steps"]:
        blocks += ["", *dry_run({**data, "sources": None}).blocks]
    return Page([*blocks, *([""] if blocks and removed else []), *removed])


def _words(said: Mapping[str, Any]) -> str:
    words = [f"{key} {_value(value)}" for key, value in said.items() if value is not None]
    return ", ".join(words) or "nothing is asked for"


def _value(value: object) -> str:
    """Return a value as host.yaml writes it, in one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(one)}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


PAGES: dict[str, Callable[[Any], Page]] = {"apply": _applied, "diff": _differs}
