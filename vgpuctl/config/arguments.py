# SPDX-License-Identifier: Apache-2.0
"""Choices, limits and times that the command line, the library and the rules of a VM's fields share.

It imports nothing heavy, because `vgpuctl --help` and shell completion need it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from vgpuctl.errors import InvalidInput

GPU_MODES = ("vgpu", "sriov", "passthrough", "unmanaged")
VM_MODES = ("vgpu", "sriov", "passthrough", RENDERING_MODE := "virtio-gpu")
OS_KINDS = ("linux", "generic", WINDOWS_11 := "windows11")
RESERVE_MODES = ("always", "running")
PLACEMENT_POLICIES = ("least-waste", "depth", "breadth", "first-fit")
DEFAULT_PLACEMENT_POLICY = "least-waste"
PLACEMENT_WORDS = {
    **dict.fromkeys(("depth", "depth-first", "consolidation", "binpack"), "depth"),
    **dict.fromkeys(("breadth", "breadth-first", "performance", "spread"), "breadth"),
}
"""The words of other systems for two of the placement policies, in lower case with hyphens: XenServer's GPU groups say
depth-first and breadth-first, ESXi consolidation and performance, Kubernetes' schedulers binpack and spread."""
PLACEMENT_CHOICES = (*PLACEMENT_POLICIES, "binpack", "spread")
"""What `placement` offers; it takes the other words, too."""
COMPUTE_PARTITIONS = ("SPX", "DPX", "QPX", "CPX")
MEMORY_PARTITIONS = ("NPS1", "NPS2", "NPS4", "NPS8")
SCHEDULER_POLICIES = ("best_effort", "equal_share", "fixed_share")
WORKLOADS = ("office", "cad", "training", "inference", "notebooks", "transcode", "kubernetes")
"""What VMs do, for `advise --workload`; `monitoring/techniques.py` describes them."""
PCI_WINDOW_AUTO, PCI_WINDOW_NONE = "auto", "none"
DASHBOARD_PREFIX = "dashboard:"
MONITORING_FILES = (
    "rules", "scrape", "alertmanager", "servicemonitor",
    *(f"{DASHBOARD_PREFIX}{name}" for name in ("fleet", "gpu", "vm", "capacity")),
)  # fmt: skip
"""What `vgpuctl monitoring` prints."""
NONE = "none"
"""No network card, no huge pages, no pinned CPUs."""
CPU_PIN_AUTO = "auto"
HUGEPAGES_KIB = {"2MiB": 2048, "1GiB": 1 << 20}
"""The sizes of huge pages in KiB."""
NETWORK_MODELS = ("virtio", "e1000e")
DEFAULT_DISK_GIB = 40
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
MAX_VGPUS_PER_VM = 16

VM_STATES = ("present", "absent", "started", "stopped")
VGPU_STATES = ("present", "absent")
WAIT_EVENTS = ("guest", "address", "driver", "license")
"""What create-vm waits for."""
WAIT_TARGETS = ("running", "off", *WAIT_EVENTS)
MAX_WAIT_SECONDS = 1e9
DEFAULT_TIMEOUT_SECONDS = 300.0
"""How long wait, and create-vm --wait-for, wait."""
DEFAULT_LOG_LINES, MAX_LOG_LINES = 50, 10_000
MAX_UNDO = 10
"""So many former versions of host.yaml are kept."""
MAX_VMS, MAX_PARALLEL, DEFAULT_PARALLEL = 1000, 64, 4

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGO = re.compile(r"([0-9]{1,6})\s*([smhdw])", re.ASCII)
_DAYS = {"today": 0, "yesterday": 1}


def require_choice(argument: str, value: object, choices: Collection[str]) -> None:
    """Check that a value is one of the choices.

    Raises:
        InvalidInput: it is not.
    """
    if value not in choices:
        raise InvalidInput(f"{argument}: {value!r} is not {_any_of(choices)}", value=str(value))


def require_range(argument: str, value: object, least: int, most: int | None = None) -> None:
    """Check that a value is a whole number in a range.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        limits = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise InvalidInput(f"{argument}: {value!r} is not a whole number {limits}", value=str(value))


def placement_policy_of(word: str) -> str | None:
    """Return the placement policy that a word of another system names, in any case and with `-` or `_`; or None."""
    return PLACEMENT_WORDS.get(word.strip().lower().replace("_", "-"))


def require_bool(argument: str, value: object) -> None:
    """Check that a value is True or False: a text like "off" would count as true.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, bool):
        raise InvalidInput(f"{argument}: {value!r} is not True or False", value=str(value))


def require_seconds(argument: str, value: object) -> None:
    """Check that a value is a number of seconds.

    Raises:
        InvalidInput: it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= float(str(value)) <= MAX_WAIT_SECONDS):
        raise InvalidInput(f"{argument}: {value!r} is not a number of seconds", value=str(value))


def as_texts(argument: str, value: object) -> tuple[str, ...]:
    """Return the texts of one text, of several, or of none.

    Raises:
        InvalidInput: it is something else.
    """
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"{argument}: {value!r} is not a text or several", value=str(value))
    return tuple(texts)


def _any_of(choices: Collection[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


def parse_past_time(argument: str, text: str, now: float) -> float:
    """Return the moment as seconds since the epoch; a time without a zone is this machine's local time.

    Raises:
        InvalidInput: it is no such text, or out of range.
    """
    stripped = text.strip()
    ago = _AGO.fullmatch(stripped)
    if ago is not None:
        return max(0.0, now - int(ago[1]) * _UNIT_SECONDS[ago[2]])
    try:
        if stripped in _DAYS:
            day = datetime.fromtimestamp(now) - timedelta(days=_DAYS[stripped])
            return day.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        return max(0.0, datetime.fromisoformat(stripped).timestamp())
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(
            f"{argument}: '{text}' is not a time",
            hint="write 30m, 2h, 7d, today, yesterday, 2026-11-25 or '2026-11-25 13:30'",
            value=text,
        ) from None
