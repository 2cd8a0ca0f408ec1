# SPDX-License-Identifier: Apache-2.0
"""The store: all that the controller keeps. Every method of its parts is one transaction.

upgrade("sqlite:////var/lib/vgpuctl-controller/fleet.db")
store = open_store("sqlite:////var/lib/vgpuctl-controller/fleet.db", alone=True)
store.pools.list()
"""

from __future__ import annotations

import os
import socket
import uuid

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, select

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.access_rows import AnswerRows, JournalRows, TokenRows
from vgpuctl.controller.database.desktop_rows import DesktopRows
from vgpuctl.controller.database.engine import LOWEST_POSTGRESQL, Database
from vgpuctl.controller.database.host_rows import HostRows
from vgpuctl.controller.database.image_rows import HostImageRows
from vgpuctl.controller.database.pool_rows import ImageRows, PoolRows
from vgpuctl.controller.database.rows import Changes
from vgpuctl.errors import HostCannot, Refused

_INCARNATION = "incarnation"
_UPGRADE = "vgpuctl controller upgrade-db"


class DatabaseNewer(Refused):
    """A newer program made the database."""

    code = "database-newer"


class DatabaseOlder(Refused):
    """The database has to be upgraded before this program can use it."""

    code = "database-older"


class Store:
    """What the controller keeps. `holder`: the name by which this controller holds hosts; another run has another."""

    def __init__(self, database: Database, incarnation: str) -> None:
        self.database = database
        self.incarnation = incarnation
        self.holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.changes = Changes()
        parts = (database, self.changes)
        self.hosts = HostRows(*parts)
        self.images = ImageRows(*parts)
        self.host_images = HostImageRows(*parts)
        self.pools = PoolRows(*parts)
        self.desktops = DesktopRows(*parts)
        self.tokens = TokenRows(*parts)
        self.journal = JournalRows(*parts)
        self.answers = AnswerRows(*parts)

    def now(self) -> float:
        """Return the database's time, in seconds since 1970."""
        with self.database.read() as connection:
            return self.database.now(connection)

    def close(self) -> None:
        """Close all connections."""
        self.database.close()


def open_store(url: str, *, alone: bool = False) -> Store:
    """Open a database that `upgrade` has made. `alone`: keep other controllers away from a file of SQLite.

    Raises:
        InvalidInput: it is no URL of a database. DatabaseUnreachable: it does not answer.
        DatabaseOlder, DatabaseNewer: its tables are those of another version. Locked: another controller has it.
    """
    database = Database(url)
    try:
        if alone:
            database.take_alone()
        with database.read() as connection:
            _check_version(database, connection)
            current, newest = _versions(connection)
            if current is None or current != newest:
                raise _version_error(database, current)
            statement = select(schema.meta.c.value).where(schema.meta.c.key == _INCARNATION)
            incarnation = str(connection.execute(statement).scalar_one())
    except BaseException:
        database.close()
        raise
    return Store(database, incarnation)


def upgrade(url: str) -> bool:
    """Make the tables of a database, or bring those of an older program to this one's; return whether it changed.

    Raises:
        InvalidInput, DatabaseUnreachable, DatabaseNewer: as `open_store`.
    """
    database = Database(url)
    try:
        with database.write() as connection:
            _check_version(database, connection)
            current, newest = _versions(connection)
            if current == newest:
                return False
            if current is not None and not _is_known(current):
                raise _version_error(database, current)
            _migrate(connection)
            known = select(schema.meta.c.value).where(schema.meta.c.key == _INCARNATION)
            if connection.execute(known).first() is None:
                connection.execute(insert(schema.meta).values(key=_INCARNATION, value=uuid.uuid4().hex))
            return True
    finally:
        database.close()


def _script() -> tuple[Config, ScriptDirectory]:
    config = Config()
    config.set_main_option("script_location", "vgpuctl.controller.database:migrations")
    return config, ScriptDirectory.from_config(config)


def _versions(connection: Connection) -> tuple[str | None, str | None]:
    """Return the version of a database's tables, None for none, and this program's."""
    return MigrationContext.configure(connection).get_current_revision(), _script()[1].get_current_head()


def _is_known(version: str) -> bool:
    return any(one.revision == version for one in _script()[1].walk_revisions())


def _migrate(connection: Connection) -> None:
    config, script = _script()

    def steps(current: object, _: object) -> object:
        return script._upgrade_revs("head", current)  # type: ignore[arg-type]

    with EnvironmentContext(config, script, fn=steps, destination_rev="head") as environment:
        environment.configure(connection=connection, target_metadata=schema.metadata, render_as_batch=True)
        environment.run_migrations()


def _version_error(database: Database, current: str | None) -> Refused:
    if current is not None and not _is_known(current):
        return DatabaseNewer(
            f"a newer vgpuctl made the database {database.name}: its tables are of version {current}",
            hint="install that version of vgpuctl here, too",
            version=current,
        )
    what = "has no tables yet" if current is None else f"has the tables of an older vgpuctl, version {current}"
    return DatabaseOlder(f"the database {database.name} {what}", hint=_UPGRADE, version=current)


def _check_version(database: Database, connection: Connection) -> None:
    version = connection.dialect.server_version_info
    major = LOWEST_POSTGRESQL if database.is_sqlite or version is None else int(version[0])
    if major < LOWEST_POSTGRESQL:
        raise HostCannot(f"PostgreSQL {major} is too old: it must be {LOWEST_POSTGRESQL} or newer", check="database")
