# SPDX-License-Identifier: Apache-2.0
"""The engine, and all that differs between SQLite and PostgreSQL: no other module asks which of them it is.

SQLite: a transaction that writes begins with BEGIN IMMEDIATE, and those of one process wait for each other on a lock
of their own, which is faster than SQLite's. PostgreSQL: rows are locked by FOR NO KEY UPDATE, which SQLite leaves out
and which other rows can still refer to. Every transaction locks in this order: people, images, pools, hosts, leases,
desktops, rooms; several rows of a table by their ids. Else two wait for each other, and PostgreSQL ends one.
"""

from __future__ import annotations

import fcntl
import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from select import select as select_files
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    ScalarSelect,
    Table,
    Text,
    cast,
    create_engine,
    event,
    func,
    literal_column,
    make_url,
    null,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from vgpuctl.controller.clock import ControllerClock
from vgpuctl.errors import InvalidInput, Locked, Temporary

BUSY_SECONDS = 20.0
CONNECT_SECONDS = 10
STATEMENT_MS = 30_000
POOL_SIZE, MORE_CONNECTIONS = 20, 20
"""So many connections stay open, and so many more may be opened; PostgreSQL begins a process for each."""
WAIT_SECONDS = 60.0
"""So long a transaction waits for a connection."""
LINE = 4
"""So many transactions of hosts' loops run at a time: more of them would only wait for Python's lock."""
CHANNEL, NOTICE_WORDS = "vgpuctl_hosts", 100
"""Where controllers tell each other which hosts a change was about; a notice of PostgreSQL has at most 8000 bytes."""
NOTICE_SECONDS = 1.0
LOWEST_POSTGRESQL = 15


class DatabaseUnreachable(Temporary):
    """The database does not answer, or refuses the connection or a transaction."""

    code = "database-unreachable"


class Database:
    """A database that is open. `write` and `read` are transactions."""

    def __init__(self, url: str, clock: ControllerClock | None = None) -> None:
        """`url`: `sqlite:////ABSOLUTE/PATH` or `postgresql://[USER[:PASSWORD]@]HOST/NAME`. `clock`: of SQLite.

        Raises:
            InvalidInput: it is another database, or no URL.
        """
        self.url = _parse(url)
        self.clock = clock or ControllerClock()
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._writing = threading.RLock() if self.is_sqlite else None
        self._lock_file: int | None = None
        self._sender = uuid.uuid4().hex
        self._line = _Line(LINE)
        self._thread = threading.local()
        self.engine = self._make_engine()

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection in a transaction, which is committed at the end, unless something is raised.

        Raises:
            DatabaseUnreachable: it does not answer.
        """
        if self._writing is None:
            with self._transaction() as connection:
                yield connection
            return
        with self._writing, self._transaction(immediate=True) as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection in a transaction that changes nothing.

        Raises:
            DatabaseUnreachable: it does not answer.
        """
        with self._transaction() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Yield a connection in a transaction in which all tables are as they were at its beginning.

        Raises:
            DatabaseUnreachable: it does not answer.
        """
        options = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self._transaction(**options) as connection:
            yield connection

    def wait_in_line(self) -> None:
        """Have this thread's transactions wait in one line with those of all other hosts' loops.

        A thousand of them begin when a controller starts: what people ask, and the pools, do not wait behind them.
        """
        self._thread.line = self._line

    def notify(self, connection: Connection, words: Iterable[str]) -> None:
        """Send words to all who follow `notices`, when the transaction is committed; SQLite has one controller."""
        sent = [] if self.is_sqlite else list(words)
        for first in range(0, len(sent), NOTICE_WORDS):
            part = {"words": " ".join((self._sender, *sent[first : first + NOTICE_WORDS]))}
            connection.execute(text(f"SELECT pg_notify('{CHANNEL}', :words)"), part)

    def notices(self, is_stopping: Callable[[], bool]) -> Iterator[tuple[str, ...]]:
        """Yield the words that other processes send, first none when it begins; of SQLite nothing.

        Raises:
            DatabaseUnreachable: it does not answer; what was sent meanwhile is lost.
        """
        if self.is_sqlite:
            return
        received: deque[str] = deque()
        with self._transaction(isolation_level="AUTOCOMMIT") as connection:
            connection.detach()
            driver: Any = connection.connection.dbapi_connection
            driver.add_notify_handler(lambda notice: received.append(notice.payload))
            connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            yield ()
            while not is_stopping():
                select_files([driver.fileno()], [], [], NOTICE_SECONDS)
                connection.exec_driver_sql("SELECT 1")  # also reads what came, and fails where the server is gone
                while received:
                    sender, *words = received.popleft().split()
                    if sender != self._sender:
                        yield tuple(words)

    def now(self, connection: Connection) -> float:
        """Return the database's time."""
        if self.is_sqlite:
            return self.clock.now()
        return float(connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def time_column(self) -> ColumnElement[Any]:
        """Return the database's time as a column of a query; of SQLite NULL, see `now`."""
        return null() if self.is_sqlite else literal_column("extract(epoch FROM clock_timestamp())")

    def generations(self, table: Table) -> ScalarSelect[str]:
        """Return a column of a query: ids and generations of all rows of a table, as words in any order."""
        word = cast(table.c.id, Text) + "=" + cast(table.c.generation, Text)
        join = func.group_concat if self.is_sqlite else func.string_agg
        return select(join(word, " ")).scalar_subquery()

    def insert_or_update(
        self, connection: Connection, table: Table, keys: tuple[str, ...], row: dict[str, Any]
    ) -> None:
        """Insert a row, or update the one with these keys."""
        dialect = sqlite if self.is_sqlite else postgresql
        statement = dialect.insert(table).values(**row)
        others = {name: value for name, value in row.items() if name not in keys}
        if others:
            connection.execute(statement.on_conflict_do_update(index_elements=list(keys), set_=others))
        else:
            connection.execute(statement.on_conflict_do_nothing(index_elements=list(keys)))

    def count_on(self, connection: Connection, table: Table, number: int) -> None:
        """Have the next row of a table that gives ids get a greater one than this; SQLite does that by itself."""
        if not self.is_sqlite:
            given = {"table": table.name, "number": number}
            connection.execute(text("SELECT setval(pg_get_serial_sequence(:table, 'id'), :number)"), given)

    def take_alone(self) -> None:
        """Keep other controllers away from a file of SQLite until this process ends; PostgreSQL serves many.

        Raises:
            Locked: another one has it.
        """
        if not self.is_sqlite:
            return
        descriptor = os.open(f"{self.url.database}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise Locked(
                f"another controller runs with {self.url.database}",
                hint="systemctl status vgpuctl-controller; several controllers need PostgreSQL: --database",
                path=self.url.database,
            ) from None
        self._lock_file = descriptor

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _make_engine(self) -> Engine:
        if self.is_sqlite:
            engine = create_engine(
                self.url,
                connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
                pool_timeout=WAIT_SECONDS,
                pool_size=POOL_SIZE,
                max_overflow=MORE_CONNECTIONS,
            )
            event.listen(engine, "do_connect", _make_private_file)
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        timeouts = f"-c statement_timeout={STATEMENT_MS} -c lock_timeout={STATEMENT_MS}"
        return create_engine(
            self.url,
            pool_pre_ping=True,
            pool_timeout=WAIT_SECONDS,
            pool_size=POOL_SIZE,
            max_overflow=MORE_CONNECTIONS,
            connect_args={"connect_timeout": CONNECT_SECONDS, "options": timeouts},
        )

    @contextmanager
    def _transaction(self, **options: Any) -> Iterator[Connection]:
        try:
            with (
                getattr(self._thread, "line", nullcontext()),
                self.engine.connect().execution_options(**options) as connection,
                connection.begin(),
            ):
                yield connection
        except IntegrityError:
            raise
        except PoolTimeout as error:
            raise DatabaseUnreachable(
                f"the database {self.name}: all {POOL_SIZE + MORE_CONNECTIONS} connections of this controller were in "
                f"use for {WAIT_SECONDS:g} s",
                hint="it has more hosts than it can serve: run another controller on this database",
            ) from error
        except DataError as error:
            raise InvalidInput(f"the database takes no such value: {_reason(error)}") from error
        except DBAPIError as error:
            raise DatabaseUnreachable(
                f"the database {self.name}: {_reason(error)}",
                hint="systemctl status postgresql; vgpuctl controller doctor",
            ) from error


class _Line:
    """Lets so many in at a time, in the order in which they came; a semaphore keeps no order."""

    def __init__(self, places: int) -> None:
        self._lock = threading.Lock()
        self._places = places
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            if self._places:
                self._places -= 1
                return
            self._waiting.append(gate)
        gate.acquire()  # who leaves opens it, and leaves his place to this one

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._places += 1


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None  # the text may have a password in it
    kinds = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}
    driver = None if parsed is None else kinds.get(parsed.drivername)
    if parsed is None or driver is None or not parsed.database:
        raise InvalidInput(
            "the database's URL is neither sqlite:////PATH/OF/FILE nor postgresql://USER@HOST/NAME",
            hint="vgpuctl controller run --database sqlite:////var/lib/vgpuctl-controller/fleet.db",
        )
    return parsed.set(drivername=driver)


def _reason(error: DBAPIError) -> str:
    lines = [line.strip() for line in str(error.orig).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error.orig).__name__


def _make_private_file(_: object, __: object, arguments: list[Any], ___: object) -> None:
    """Make the file of a new database for its owner alone; SQLite's other files get its mode."""
    with suppress(OSError):  # it is there, or SQLite says what is wrong
        os.close(os.open(arguments[0], os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says
    for pragma in ("foreign_keys = ON", "journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
