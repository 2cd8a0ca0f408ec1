# SPDX-License-Identifier: Apache-2.0
"""A backup of what is wanted: one file that any kind of database can be restored from.

The file is JSON, one object a line, compressed by gzip: a head with the version of the tables and the incarnation, a
line for each row, and an end with their numbers. Left out is what counts no more after a restore: leases, rooms, kept
answers, sessions; API tokens, because a restore would bring back those that were deleted since; hashes of passwords,
which who has the file could try.

A restored database is a new incarnation (`planning.restored`): nothing is changed on hosts until an admin confirms it.
"""

from __future__ import annotations

import gzip
import json
import os
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, Table, delete, func, insert, inspect, select, text, update
from sqlalchemy.exc import IntegrityError, NoSuchTableError

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.database.restored_rows import (
    INCARNATION,
    RESTORED_KEY,
    begin_restored,
    doubt_all,
    read_restored,
)
from vgpuctl.controller.database.rows import pool_of
from vgpuctl.controller.database.store import (
    check_server,
    is_known,
    migrate,
    open_store,
    read_incarnation,
    version_error,
    versions,
)
from vgpuctl.controller.database.use_rows import end_spans
from vgpuctl.controller.model import Restored
from vgpuctl.errors import FileFailed, InvalidInput, Locked, Refused
from vgpuctl.host.atomic_files import sync_directory, temporary_file
from vgpuctl.regular_file import open_regular_file
from vgpuctl.value import Value

FORMAT = "vgpuctl-fleet-backup"
TABLES = (
    "meta",
    "image",
    "pool",
    "host",
    "person",
    "membership",
    "entitlement",
    "quota",
    "desktop",
    "event",
    "use_span",
    "refusal",
)
"""What a backup has, in the order in which rows can be added. The ids of those that are `NUMBERED` are given again."""
NUMBERED = ("event", "use_span")
MAX_FILE_BYTES, MAX_LINE_BYTES, MAX_ROWS = 4 << 30, 4 << 20, 20_000_000
_BATCH_ROWS = 500


class Renewed(Value):
    """A database that was restored: its name, its incarnation, and the former one."""

    database: str
    incarnation: str
    former: str


class Backup(Value):
    """A backup file. `version`: of its tables. `rows`: how many each table has."""

    version: str
    incarnation: str
    at: float
    rows: Mapping[str, int]


def write_backup(url: str, path: Path) -> Backup:
    """Write a backup of a database, also while controllers use it.

    Raises:
        FileFailed: the file cannot be written. InvalidInput, DatabaseUnreachable, Refused: as `open_store`.
    """
    if path.exists() and not path.is_file():
        raise InvalidInput(f"{path} is not a file", hint=f"ls -ld {path}")
    store = open_store(url)
    try:
        with store.database.snapshot() as connection, temporary_file(path, b"") as temporary:
            with open(temporary, "wb") as raw:
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
                    backup = _write_lines(file, connection, store.database)
                raw.flush()
                os.fsync(raw.fileno())
            os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise FileFailed(
            f"the backup {path} cannot be written: {error.strerror}", hint=f"df -h {path.parent}", path=str(path)
        ) from error
    finally:
        store.close()
    return backup


def _write_lines(file: gzip.GzipFile, connection: Connection, database: Database) -> Backup:
    version, _ = versions(connection)
    incarnation, now = read_incarnation(connection), database.now(connection)
    head = {"format": FORMAT, "version": version, "incarnation": incarnation, "at": now}
    rows: Counter[str] = Counter()
    file.write(_line(head))
    for name in TABLES:
        table = schema.metadata.tables[name]
        result = connection.execution_options(yield_per=_BATCH_ROWS).execute(select(table).order_by(*table.primary_key))
        for row in result.mappings():
            values = {column: value for column, value in row.items() if (name in NUMBERED, column) != (True, "id")}
            if name == "person":
                values["password"] = None
            file.write(_line({"table": name, "row": values}))
            rows[name] += 1
    file.write(_line({"end": dict(rows)}))
    return Backup(str(version), incarnation, now, dict(rows))


def _line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def read_backup(path: Path) -> Backup:
    """Read a whole backup, and return what it has.

    Raises:
        FileFailed: the file cannot be read. InvalidInput: it is no backup, damaged, or not whole. Refused: a newer
        vgpuctl wrote it.
    """
    with _Reader(path) as reader:
        head = reader.head
        rows = Counter(name for name, _ in reader)
    return Backup(head.version, head.incarnation, head.at, dict(rows))


def count_rows(url: str) -> Mapping[str, int]:
    """Return how many rows a database has that a restore would replace, by table; empty: it may be restored into.

    Raises:
        InvalidInput, DatabaseUnreachable, DatabaseNewer: as `open_store`.
    """
    database = Database(url)
    try:
        with database.read() as connection:
            check_server(database, connection)
            current, _ = versions(connection)
            if current is not None and not is_known(current):
                raise version_error(database, current)
            return _counts(connection)
    finally:
        database.close()


def restore_backup(url: str, path: Path, *, replace: bool) -> Renewed:
    """Restore a database from a backup. `replace`: it need not be empty.

    Raises:
        Refused: it is not empty. Locked: a controller uses it. InvalidInput, FileFailed: as `read_backup`.
    """
    backup = read_backup(path)
    database = Database(url)
    try:
        database.take_alone()
        with _Reader(path) as reader, database.write() as connection:
            check_server(database, connection)
            current, _ = versions(connection)
            if current is not None and not is_known(current):
                raise version_error(database, current)
            refuse_running(database, connection)
            counts = _counts(connection)
            if counts and not replace:
                raise not_empty(database, counts)
            _drop_tables(connection)
            migrate(connection, backup.version)
            _insert_all(connection, reader)
            migrate(connection)
            end_spans(connection, backup.at)  # what people had since then is not known
            for row in connection.execute(select(schema.pool)).mappings():
                pool_of(row)  # what is not a pool is refused now, and not by the controller
            return _renew(database, connection, backup.incarnation, f"the backup {path.name}")
    except IntegrityError as error:
        raise InvalidInput(f"{path} is damaged: its rows contradict each other: {error.orig}") from error
    finally:
        database.close()


def renew_incarnation(url: str) -> Renewed:
    """Count a database as restored that was copied by other means, such as pg_restore.

    Raises:
        Locked: a controller uses it. InvalidInput, DatabaseUnreachable, Refused: as `open_store`.
    """
    store = open_store(url, alone=True)
    try:
        with store.database.write() as connection:
            refuse_running(store.database, connection)
            return _renew(store.database, connection, read_incarnation(connection), "a copy of the database")
    finally:
        store.close()


def refuse_running(database: Database, connection: Connection) -> None:
    """Refuse a database that a controller uses: of SQLite `take_alone` does.

    Raises:
        Locked: it lives, or has the lease of a host.
    """
    present = set() if database.is_sqlite else set(inspect(connection).get_table_names())
    holder = None
    for table in (schema.controller, schema.host_lease):
        if table.name in present and holder is None:
            running = select(table.c.holder).where(table.c.expires_at > database.now(connection)).limit(1)
            holder = connection.execute(running).scalar()
    if holder is not None:
        raise Locked(
            f"the controller {holder} uses {database.name}",
            hint="systemctl stop vgpuctl-controller, on each machine that runs one",
            holder=holder,
        )


def not_empty(database: Database, counts: Mapping[str, int]) -> Refused:
    """Return the error for a database that has rows."""
    return Refused(
        f"the database {database.name} is not empty: {counts_text(counts)}",
        hint="restore into another database, or add --replace",
        rows=dict(counts),
    )


def counts_text(counts: Mapping[str, int]) -> str:
    """Return numbers of rows for people."""
    return ", ".join(f"{counts[name]} in {name}" for name in sorted(counts))


def _counts(connection: Connection) -> Mapping[str, int]:
    present = set(inspect(connection).get_table_names())
    counts = {}
    for name in ("image", "pool", "host", "desktop", "token", "person", "entitlement", "quota"):
        if name in present:
            table = schema.metadata.tables[name]
            counts[name] = int(connection.execute(select(func.count()).select_from(table)).scalar_one())
    return {name: count for name, count in counts.items() if count}


def _drop_tables(connection: Connection) -> None:
    """Drop the controller's tables, and no others."""
    schema.metadata.drop_all(connection)
    connection.execute(text("DROP TABLE IF EXISTS alembic_version"))


def _insert_all(connection: Connection, reader: _Reader) -> None:
    """Insert a backup's rows into the tables of its version."""
    tables: dict[str, Table] = {}
    batch: list[dict[str, Any]] = []
    former: str | None = None
    for name, row in reader:
        if name not in tables:
            tables[name] = _table_of(connection, name)
            if name == "meta":
                connection.execute(delete(tables[name]))
        if batch and (name != former or len(batch) >= _BATCH_ROWS):
            connection.execute(insert(tables[str(former)]), batch)
            batch = []
        _check_row(tables[name], row)
        batch.append(row)
        former = name
    if batch:
        connection.execute(insert(tables[str(former)]), batch)


def _table_of(connection: Connection, name: str) -> Table:
    try:
        return Table(name, MetaData(), autoload_with=connection, resolve_fks=False)
    except NoSuchTableError as error:
        raise InvalidInput(f"the backup has rows of {name}, which its version has no table for") from error


def _check_row(table: Table, row: Mapping[str, object]) -> None:
    expected = {column.name for column in table.columns} - ({"id"} if table.name in NUMBERED else set())
    if row.keys() != expected:
        raise InvalidInput(f"the backup is damaged: a row of {table.name} has the columns {', '.join(sorted(row))}")
    for column in table.columns:
        value, kind = row.get(column.name), column.type.python_type
        is_number = kind is float and isinstance(value, int) and not isinstance(value, bool)
        if column.name in row and not (is_number or (column.nullable and value is None) or type(value) is kind):
            raise InvalidInput(f"the backup is damaged: {table.name}.{column.name} is {str(value)[:60]!a}")


def _renew(database: Database, connection: Connection, former: str, source: str) -> Renewed:
    """Give a database a new incarnation, which waits for an admin.

    Nothing opens it that may have been deleted since: a copy by other means still has tokens and sessions.
    """
    meta, new = schema.meta, uuid.uuid4().hex
    before = read_restored(connection)
    connection.execute(delete(meta).where(meta.c.key == RESTORED_KEY))
    database.insert_or_update(connection, meta, ("key",), {"key": INCARNATION, "value": new})
    doubt_all(connection)
    for table in (schema.personal_token, schema.token, schema.web_session):
        connection.execute(delete(table))
    restored = Restored(
        tuple(sorted({*before.former, former})), database.now(connection), source, before.imported_pools
    )
    begin_restored(database, connection, restored)
    connection.execute(update(schema.host).values(seen_at=None, problem=None))
    return Renewed(database.name, new, former)


class _Reader:
    """Reads a backup's lines, each checked; the end must say how many rows there were."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.head = Backup("", "", 0.0, {})

    def __enter__(self) -> _Reader:
        try:
            self._raw = open_regular_file(self._path, MAX_FILE_BYTES)
        except OSError as error:
            raise FileFailed(
                f"the backup {self._path} cannot be read: {error.strerror}", path=str(self._path)
            ) from error
        self._file = gzip.GzipFile(fileobj=self._raw, mode="rb")
        try:
            head = self._read_line()
            version, incarnation, at = head.get("version"), head.get("incarnation"), head.get("at")
            if head.get("format") != FORMAT:
                raise self._damaged(f"it is no backup of vgpuctl controller ({FORMAT})")
            if not isinstance(version, str) or not isinstance(incarnation, str) or not isinstance(at, float | int):
                raise self._damaged("its head is not whole")
            if not is_known(version):
                raise Refused(
                    f"a newer vgpuctl wrote {self._path}: its tables are of version {version}",
                    hint="install that version of vgpuctl here, too",
                    version=version,
                )
        except BaseException:
            self.__exit__()
            raise
        self.head = Backup(version, incarnation, float(at), {})
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._raw.close()

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        rows: Counter[str] = Counter()
        while True:
            line = self._read_line()
            if "end" in line:
                if line["end"] != dict(rows):
                    raise self._damaged("rows are missing")
                if self._file.read(1):
                    raise self._damaged("something follows its end")
                return
            name, row = line.get("table"), line.get("row")
            if name not in TABLES or not isinstance(row, dict):
                raise self._damaged("a line is neither a row nor the end")
            rows[name] += 1
            if rows.total() > MAX_ROWS:
                raise self._damaged(f"it has more than {MAX_ROWS} rows")
            yield name, row

    def _read_line(self) -> dict[str, Any]:
        try:
            line = self._file.readline(MAX_LINE_BYTES + 1)
            value = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from error
        if not isinstance(value, dict):
            raise self._damaged("it ends too early" if len(line) <= MAX_LINE_BYTES else "a line is too long")
        return value

    def _damaged(self, why: str) -> InvalidInput:
        return InvalidInput(f"{self._path} cannot be restored: {why}", path=str(self._path))
