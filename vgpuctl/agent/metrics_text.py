# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format, rendered by hand: 41,056 samples take the package `prometheus_client` 0.4 s of CPU.

    family = Family("gpu_temperature_celsius", "Temperature.", GPU, ("sensor",), lambda gpu: {"gpu": 51.0})
    text = render((family,), {GPU: [('gpu="0000:3b:00.0"', gpu)]})

What is unknown has no sample, as Prometheus' guide says: never 0. Source: "Exposition formats", text format 0.0.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

PREFIX = "vgpuctl_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL_CHARACTERS = 200

Values = float | int | bool | None | Mapping[Any, float | int | bool | None]
"""What a family has for one thing: a number; None for unknown; or numbers by the values of its own labels."""


class Family(NamedTuple):
    """A metric: its name without the prefix, its help text, and of which things it has samples.

    `labels`: its own labels, beside those that name the thing. `read`: gets a thing and returns its `Values`.
    """

    name: str
    help: str
    of: str
    labels: tuple[str, ...]
    read: Callable[[Any], Values]

    @property
    def type(self) -> str:
        """Its type: what only grows has a name that ends so."""
        return "counter" if self.name.endswith("_total") else "gauge"


def render(families: Iterable[Family], things: Mapping[str, Sequence[tuple[str, object]]]) -> bytes:
    """Return the text of these metrics. `things`: by kind, each with its labels as text."""
    lines: list[str] = []
    for family in families:
        samples = [line for labels, thing in things[family.of] for line in _samples(family, labels, family.read(thing))]
        if samples:
            name = PREFIX + family.name
            lines += [f"# HELP {name} {_escape_help(family.help)}", f"# TYPE {name} {family.type}", *samples]
    return ("\n".join(lines) + "\n").encode() if lines else b""


def label_text(labels: Mapping[str, object]) -> str:
    """Return labels as they stand between the braces. None is the empty text, as Prometheus has it."""
    return ",".join(f'{name}="{escape_label(value)}"' for name, value in labels.items())


def escape_label(value: object) -> str:
    """Return a label's value without control characters, escaped and not too long."""
    text = "" if value is None else str(value)
    if not text.isprintable():
        text = "".join(c for c in text if c.isprintable())
    text = text[:MAX_LABEL_CHARACTERS]
    return text.replace("\\", "\\\\").replace('"', '\\"') if "\\" in text or '"' in text else text


def _samples(family: Family, labels: str, values: Values) -> Iterable[str]:
    name = PREFIX + family.name
    if not isinstance(values, Mapping):
        if values is not None:
            yield f"{name}{{{labels}}} {_number(values)}" if labels else f"{name} {_number(values)}"
        return
    for own, number in values.items():
        if number is not None:
            own_values = own if isinstance(own, tuple) else (own,)
            own_text = label_text(dict(zip(family.labels, own_values, strict=True)))
            yield f"{name}{{{labels}{',' if labels else ''}{own_text}}} {_number(number)}"


def _number(value: float | bool) -> str:
    return str(int(value)) if isinstance(value, bool) else repr(value)


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
