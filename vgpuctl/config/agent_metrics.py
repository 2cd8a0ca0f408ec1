# SPDX-License-Identifier: Apache-2.0
"""`agent: metrics:` and `agent: readers:` of host.yaml: where metrics are served, and programs that read other GPUs.

Metrics are off by default: on 127.0.0.1 any local user reads the names of VMs and owners, also one who is in none of
the agent's groups. Any other address needs certificates on both sides.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from vgpuctl.config import rules
from vgpuctl.config.shape import Key, Shape
from vgpuctl.config.vm_fields import integer_schema, pattern_schema
from vgpuctl.model.agent_service import METRICS_PORT
from vgpuctl.model.usage import NVML_SOURCE, SYSFS_SOURCE, ReaderProgram
from vgpuctl.value import Value


class MetricsSpec(Value):
    """Where the agent serves metrics on TCP. `listen`: `ADDRESS:PORT`, with an IPv6 address in brackets.

    `tls_certificate`, `tls_key`, `client_ca`: paths of PEM files; None on a loopback address.
    """

    listen: str
    tls_certificate: str | None = None
    tls_key: str | None = None
    client_ca: str | None = None

    @property
    def address(self) -> str:
        """The IP address."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port."""
        return int(self.listen.rpartition(":")[2])


def parse_metrics(value: object) -> MetricsSpec:
    """Check where metrics are served."""
    given: dict[str, Any] = METRICS_SHAPE.check(value)
    return MetricsSpec(**given)


def _check_metrics(given: Mapping[str, object]) -> tuple[rules.Problem, ...]:
    missing = [key for key in ("listen",) if key not in given]
    names = ("tls_certificate", "tls_key", "client_ca")
    if any(name in given for name in names):
        missing += [name for name in names if name not in given]
    problems = [rules.Problem((), f"{name} is missing") for name in missing]
    if not problems and "tls_key" not in given and _is_open(str(given["listen"])):
        text = "other machines reach that address: set tls_certificate, tls_key and client_ca, or use 127.0.0.1"
        problems.append(rules.Problem(("listen",), text))
    return tuple(problems)


def _is_open(listen: str) -> bool:
    """Return whether other machines reach an address; False for what is none, which its own rule refuses."""
    try:
        return not ipaddress.ip_address(MetricsSpec(listen).address).is_loopback
    except ValueError:
        return False


def _listen_address(value: object) -> str:
    """Check `ADDRESS:PORT`; a name is no address: it may come to mean another one."""
    text = rules.as_text(value)
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[0-9.]+):([0-9]{1,5})", text, re.ASCII)
    try:
        ipaddress.ip_address(match[1].strip("[]") if match else "")
        is_valid = match is not None and 0 < int(match[2]) < 1 << 16
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError(f"{text!a} is not an address with a port: write 127.0.0.1:{METRICS_PORT}")
    return text


_PEM_SCHEMA = {"pattern": "^/", "type": "string"}
METRICS_SHAPE = Shape(
    "AgentMetrics",
    "Where the agent serves metrics for Prometheus; without it, only on its own socket.",
    (
        Key(
            "listen",
            _listen_address,
            f"an address of this host and a port, such as 127.0.0.1:{METRICS_PORT}",
            pattern_schema(r"(\[[0-9a-fA-F:.]+\]|[0-9.]+):[0-9]{1,5}"),
        ),
        Key("tls_certificate", rules.path, "a PEM file with the certificate of this host", _PEM_SCHEMA),
        Key("tls_key", rules.path, "a PEM file with its key, root's alone", _PEM_SCHEMA),
        Key(
            "client_ca", rules.path, "a PEM file with the authority that signs the scrapers' certificates", _PEM_SCHEMA
        ),
    ),
    _check_metrics,
)


def parse_reader(value: object) -> ReaderProgram:
    """Check a program that reads the use of GPUs. Its name is its key in the section."""
    given: dict[str, Any] = READER_SHAPE.check(value)
    return ReaderProgram("", given["program"], given["user"], float(given.get("deadline_seconds", DEFAULT_DEADLINE)))


def dump_reader(reader: ReaderProgram) -> dict[str, object]:
    """Return a program as host.yaml writes it."""
    written: dict[str, object] = {"program": reader.path, "user": reader.user}
    return written | (
        {"deadline_seconds": int(reader.deadline_seconds)} if reader.deadline_seconds != DEFAULT_DEADLINE else {}
    )


def _check_reader(given: Mapping[str, object]) -> tuple[rules.Problem, ...]:
    return tuple(rules.Problem((), f"{name} is missing") for name in ("program", "user") if name not in given)


def _user(value: object) -> str:
    text = rules.as_text(value)
    if not re.fullmatch(USER_PATTERN, text, re.ASCII):
        raise ValueError(f"{text!a} is not the name of a user")
    return text


DEFAULT_DEADLINE, MAX_DEADLINE = 5, 10
RESERVED_READER_NAMES = frozenset({"agent", NVML_SOURCE, SYSFS_SOURCE})
"""What failed sources are named by, besides programs."""
USER_PATTERN = "[a-z_][a-z0-9_-]{0,31}"
READER_SHAPE = Shape(
    "AgentReader",
    "A program that prints the use of a maker's GPUs as JSON, for GPUs that neither NVML nor sysfs tells about.",
    (
        Key("program", rules.path, "a program that is root's alone, with all its directories", _PEM_SCHEMA),
        Key("user", _user, "it runs as this user, without input", pattern_schema(USER_PATTERN)),
        Key(
            "deadline_seconds",
            rules.whole_number(1, MAX_DEADLINE),
            f"it ends within this time; {DEFAULT_DEADLINE} without the key",
            integer_schema(1, MAX_DEADLINE),
        ),
    ),
    _check_reader,
)
