# SPDX-License-Identifier: Apache-2.0
"""The history of the use of vGPUs in a SQLite file; implements `ports.devices.UsageHistory`.

It is history, not state: whoever loses it loses advice. So a damaged file is set aside and another one begun, and while
nothing can be written, hours wait in memory. A process that is killed loses what it had not written, ten minutes at
most. Hours are kept for 35 days, days for 400; above 200 MiB the oldest hours go first, then the oldest days.

Readers open the file for reading alone, at the same time as the writer (write-ahead log).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from vgpuctl.model.results.usage import UsageResult, VgpuUsageResult
from vgpuctl.model.usage_history import DAY_SECONDS, DAYS_KEPT, HOUR_SECONDS, HOURS_KEPT_DAYS, UsedHour, VgpuHistory
from vgpuctl.model.vm import NOT_RUNNING_STATES, OFF_OR_UNKNOWN_STATES
from vgpuctl.value import replace

if TYPE_CHECKING:
    import sqlite3

HISTORY_NAME = "usage.sqlite"
FLUSH_SECONDS = 600.0
MAX_BYTES = 200 << 20
FEWEST_HOURS_DAYS = 1
"""The hours of so many days stay where days alone are too much; then the oldest days go."""
BUSY_SECONDS = 5.0
"""So long another process that writes is waited for."""
LONGEST_STEP_SECONDS = 60.0
"""So much time at most a sample stands for: what lies between two that are further apart is unknown."""
MAX_WAITING_HOURS = 100_000
_MEAN_SECONDS = 300
_PEAKS_SECONDS = 60.0
_TABLES = """
CREATE TABLE IF NOT EXISTS vgpus (
    vm_uuid TEXT, number INTEGER, vm TEXT, profile TEXT, framebuffer_mib INTEGER, gpu TEXT, owner TEXT, labels TEXT,
    PRIMARY KEY (vm_uuid, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS hours (
    vm_uuid TEXT, number INTEGER, start INTEGER, peak INTEGER, peak_time REAL, sm REAL,
    seen REAL, on_time REAL, work REAL,
    PRIMARY KEY (vm_uuid, number, start)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS days (
    vm_uuid TEXT, number INTEGER, start INTEGER, peak INTEGER, peak_time REAL, sm REAL,
    seen REAL, on_time REAL, work REAL,
    PRIMARY KEY (vm_uuid, number, start)) WITHOUT ROWID;
"""
_UPSERT = """
INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    peak_time = CASE WHEN excluded.peak > coalesce(peak, -1) THEN excluded.peak_time ELSE peak_time END,
    peak = CASE WHEN excluded.peak > coalesce(peak, -1) THEN excluded.peak ELSE peak END,
    sm = CASE WHEN excluded.sm > coalesce(sm, -1) THEN excluded.sm ELSE sm END,
    seen = seen + excluded.seen, on_time = on_time + excluded.on_time, work = work + excluded.work
"""
_Key = tuple[str, int]


class _Hour:
    """What was added to one hour of a vGPU since it was written last."""

    def __init__(self) -> None:
        self.peak: int | None = None
        self.peak_time: float | None = None
        self.sm: float | None = None
        self.seen = self.on_time = self.work = 0.0


class _Mean:
    """The mean of the cores' use over five minutes, which may still go on."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.total = self.seconds = 0.0


class UsageHistoryFile:
    """The history of one host. `path`: the file; its directory need not exist, then there is no history yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._waiting: dict[tuple[str, int, int], _Hour] = {}
        self._means: dict[_Key, _Mean] = {}
        self._rows: dict[_Key, VgpuUsageResult] = {}
        self._last_time: float | None = None
        self._last_rows: tuple[VgpuUsageResult, ...] = ()
        self._next_flush = time.monotonic() + FLUSH_SECONDS
        self._peaks: tuple[float, Mapping[_Key, int]] | None = None
        self.problem: str | None = None
        """Why nothing can be written now; None while that works."""

    # ------------------------------------------------------------------ writing

    def add(self, result: UsageResult) -> None:
        """Add a sample; each ten minutes, write what was added."""
        with self._lock:
            last, self._last_time = self._last_time, result.time
            seconds = 0.0 if last is None else min(max(0.0, result.time - last), LONGEST_STEP_SECONDS)
            self._last_rows = result.vgpus
            for row in result.vgpus:
                if row.vm_uuid is not None and row.index is not None and row.profile and row.framebuffer_mib:
                    self._add_row(row, (row.vm_uuid, row.index), result.time, seconds)
        if time.monotonic() >= self._next_flush:
            self.flush()

    def _add_row(self, row: VgpuUsageResult, key: _Key, now: float, seconds: float) -> None:
        known = self._rows.get(key)
        if known is not None and known.profile != row.profile:  # its use with the former profile says nothing
            self._means.pop(key, None)
            for one in [one for one in self._waiting if one[:2] == key]:
                del self._waiting[one]
        self._rows[key] = row
        start = int(now) // HOUR_SECONDS * HOUR_SECONDS
        if (*key, start) not in self._waiting and len(self._waiting) >= MAX_WAITING_HOURS:
            return
        is_on = row.vm_state is not None and row.vm_state not in (*NOT_RUNNING_STATES, *OFF_OR_UNKNOWN_STATES)
        if not is_on:
            self._means.pop(key, None)
            return
        hour = self._waiting.setdefault((*key, start), _Hour())
        hour.on_time += seconds
        use = row.use
        if use is None:
            return
        if use.guest_driver is not None:
            hour.seen += seconds
        if use.memory_used_bytes is not None and use.memory_used_bytes > (-1 if hour.peak is None else hour.peak):
            hour.peak, hour.peak_time = use.memory_used_bytes, now
        if use.engines.sm is not None:
            hour.work += use.engines.sm * seconds
            self._add_mean(key, hour, use.engines.sm, now, seconds)

    def _add_mean(self, key: _Key, hour: _Hour, sm: float, now: float, seconds: float) -> None:
        start = int(now) // _MEAN_SECONDS
        mean = self._means.get(key)
        if mean is None or mean.start != start:
            mean = self._means[key] = _Mean(start)
        mean.total += sm * seconds
        mean.seconds += seconds
        if mean.seconds >= _MEAN_SECONDS / 2:
            hour.sm = max(hour.sm or 0.0, mean.total / mean.seconds)

    def flush(self) -> None:
        """Write what was added. What cannot be written waits; `problem` says why."""
        import sqlite3  # slow to load, and most commands need no history

        with self._lock:
            self._next_flush = time.monotonic() + FLUSH_SECONDS
            try:
                self._write()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    self.problem = f"{self._path}: {error}"
                    return
                self._set_aside()
                self._next_flush = time.monotonic()  # the next sample begins another one
                self.problem = f"{self._path} was damaged ({error}), and is set aside"
                return
            except OSError as error:
                self.problem = f"{self._path}: {error.strerror}"
                return
            self.problem = None
            self._waiting.clear()
            newest_rows = {(row.vm_uuid, row.index) for row in self._last_rows}
            self._rows = {key: row for key, row in self._rows.items() if key in newest_rows}
            newest = max((mean.start for mean in self._means.values()), default=0)
            self._means = {key: mean for key, mean in self._means.items() if mean.start >= newest - 1}
            self._peaks = None

    def _write(self) -> None:
        import sqlite3  # as above

        os.makedirs(self._path.parent, mode=0o700, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.close(descriptor)
        with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS)) as database, database:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(_TABLES)
            (newest,) = database.execute("SELECT max(start) FROM days").fetchone()
            for key, row in self._rows.items():
                self._write_vgpu(database, key, row)
            for table, length in (("hours", HOUR_SECONDS), ("days", DAY_SECONDS)):
                database.executemany(
                    _UPSERT.format(table=table),
                    (
                        (uuid, number, start // length * length, h.peak, h.peak_time, h.sm, h.seen, h.on_time, h.work)
                        for (uuid, number, start), h in self._waiting.items()
                    ),
                )
            self._remove_old(database, newest)

    def _write_vgpu(self, database: sqlite3.Connection, key: _Key, row: VgpuUsageResult) -> None:
        """Write what a vGPU is; with another profile its hours begin again."""
        known = database.execute("SELECT profile FROM vgpus WHERE vm_uuid = ? AND number = ?", key).fetchone()
        if known is not None and known[0] != row.profile:
            database.execute("DELETE FROM hours WHERE vm_uuid = ? AND number = ?", key)
        labels = json.dumps(dict(row.labels))
        values = (*key, row.vm, row.profile, row.framebuffer_mib, row.gpu, row.owner, labels)
        database.execute("INSERT OR REPLACE INTO vgpus VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _remove_old(self, database: sqlite3.Connection, newest: int | None) -> None:
        """Remove what is too old, and the oldest where all of it is too much. `newest`: the newest day until now.

        Age counts from there: a clock that is far ahead for a moment must not cost the history.
        """
        now = self._last_time or 0.0
        now = now if newest is None else min(now, newest + 2 * DAY_SECONDS)
        database.execute("DELETE FROM hours WHERE start < ?", (now - HOURS_KEPT_DAYS * DAY_SECONDS,))
        database.execute("DELETE FROM days WHERE start < ?", (now - DAYS_KEPT * DAY_SECONDS,))
        database.execute(
            "DELETE FROM vgpus WHERE NOT EXISTS (SELECT 1 FROM days AS d"
            " WHERE d.vm_uuid = vgpus.vm_uuid AND d.number = vgpus.number)"
        )
        pages, page_size, free = (
            database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size", "freelist_count")
        )
        if (pages - free) * page_size > MAX_BYTES:
            hour, day = (
                database.execute(f"SELECT min(start) FROM {table}").fetchone()[0]  # noqa: S608 - one of two names
                for table in ("hours", "days")
            )
            if hour is not None and hour < now - FEWEST_HOURS_DAYS * DAY_SECONDS:
                database.execute("DELETE FROM hours WHERE start < ?", (hour + DAY_SECONDS,))
            elif day is not None and day < now - FEWEST_HOURS_DAYS * DAY_SECONDS:
                database.execute("DELETE FROM days WHERE start < ?", (day + DAY_SECONDS,))

    def _set_aside(self) -> None:
        """Rename a damaged file, so that another one can begin; what a person could still read stays."""
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.rename(f"{self._path}{suffix}", f"{self._path}.damaged{suffix}")

    # ------------------------------------------------------------------ reading

    def read(self, *, days: bool = False) -> tuple[VgpuHistory, ...]:
        """Return what is kept of all vGPUs, by VM and number: their hours, or with `days` their days."""
        table = "days" if days else "hours"
        rows = self._select(f"SELECT * FROM {table} ORDER BY start")  # noqa: S608 - one of two names
        hours: dict[_Key, list[UsedHour]] = {}
        for uuid, number, *values in rows:
            hours.setdefault((uuid, number), []).append(UsedHour(*values))
        vgpus = self._select("SELECT * FROM vgpus ORDER BY vm, number")
        return tuple(
            replace(VgpuHistory(*facts), labels=json.loads(labels), hours=tuple(hours.get((facts[0], facts[1]), ())))
            for *facts, labels in vgpus
        )

    def peaks(self) -> Mapping[_Key, int]:
        """Return the highest framebuffer use of each vGPU in 35 days, by the VM's uuid and the vGPU's number."""
        now = time.monotonic()
        if self._peaks is None or now - self._peaks[0] > _PEAKS_SECONDS:
            rows = self._select("SELECT vm_uuid, number, max(peak) FROM hours WHERE peak >= 0 GROUP BY vm_uuid, number")
            self._peaks = now, {(uuid, number): peak for uuid, number, peak in rows}
        return self._peaks[1]

    def _select(self, query: str) -> list[tuple[Any, ...]]:
        """Return rows of the file; none where it is missing, damaged, or of another version."""
        import sqlite3  # as above

        address = f"{self._path.absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as database:
                return database.execute(query).fetchall()
        except sqlite3.Error:
            return []
