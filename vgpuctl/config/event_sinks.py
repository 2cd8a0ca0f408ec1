# SPDX-License-Identifier: Apache-2.0
"""`agent: notify:` of host.yaml: programs and https addresses that get events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.shape import Key, Shape, nonempty_list
from vgpuctl.config.vm_fields import nonempty_list_schema, pattern_schema
from vgpuctl.model.event import EventType, Sink


def dump_sink(sink: Sink) -> dict[str, object]:
    """Return a receiver as host.yaml writes it."""
    values: dict[str, object] = {"program": sink.program, "url": sink.url, "secret_file": sink.secret_file}
    values["types"] = [str(kind) for kind in sink.types] or None
    return {key: value for key, value in values.items() if value is not None}


def parse_sink(value: object) -> Sink:
    """Check a receiver."""
    given: dict[str, Any] = SINK_SHAPE.check(value)
    return Sink(given.get("program"), given.get("url"), given.get("secret_file"), tuple(given.get("types", ())))


def _check_sink(given: Mapping[str, object]) -> tuple[rules.Problem, ...]:
    if ("program" in given) == ("url" in given):
        return (rules.Problem((), "a receiver of events is either a program or a url: set one of them"),)
    if "url" in given and "secret_file" not in given:
        return (rules.Problem(("url",), "an https address needs the key that signs the events: set secret_file"),)
    return ()


def _url(value: object) -> str:
    text = rules.as_text(value)
    if not re.fullmatch(r"https://[!-~]+", text, re.ASCII):
        raise ValueError(f"{text!a} is not an https address")
    return text


def _event_type(value: object) -> EventType:
    return EventType(rules.one_of(tuple(EventType))(value))


SINK_SHAPE = Shape(
    "AgentSink",
    "A receiver of events: a program that gets each as JSON on its standard input, or an https address.",
    (
        Key(
            "program",
            rules.path,
            "a program that is root's alone; it gets one event as a line of JSON, and 10 seconds",
            {"pattern": "^/", "type": "string"},
        ),
        Key("url", _url, "an https address; redirects are not followed", pattern_schema("https://.+")),
        Key(
            "secret_file",
            rules.path,
            "a file that is root's alone, with the key that signs what is sent to the address (HMAC-SHA256)",
            {"pattern": "^/", "type": "string"},
        ),
        Key(
            "types",
            nonempty_list(_event_type),
            "only events of these types; all without it",
            nonempty_list_schema({"enum": [str(kind) for kind in EventType], "type": "string"}),
        ),
    ),
    _check_sink,
)
