# SPDX-License-Identifier: Apache-2.0
"""The store: all that the controller keeps. Every method of its parts is one transaction.

upgrade("sqlite:////var/lib/vgpuctl-controller/fleet.db")
store = open_store("sqlite:////var/lib/vgpuctl-controller/fleet.db", alone=True)
store.pools.list()
"""

from __future__ import annotations

import functools
import os
import socket
import uuid

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, select

from vgpuctl.controller.clock import ControllerClock
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.console_rows import ConsoleRows
from vgpuctl.controller.database.controller_rows import ControllerRows
from vgpuctl.controller.database.desktop_rows import DesktopRows
from vgpuctl.controller.database.engine import LOWEST_POSTGRESQL, Database
from vgpuctl.controller.database.entitlement_rows import EntitlementRows
from vgpuctl.controller.database.host_rows import HostRows
from vgpuctl.controller.database.host_view import HostView, HostViews
from vgpuctl.controller.database.image_rows import HostImageRows
from vgpuctl.controller.database.journal_rows import AnswerRows, JournalRows
from vgpuctl.controller.database.live_move_rows import LiveMoveRows
from vgpuctl.controller.database.move_rows import MoveRows
from vgpuctl.controller.database.people_rows import PeopleRows
from vgpuctl.controller.database.personal_token_rows import PersonalTokenRows
from vgpuctl.controller.database.place_rows import PlaceRows
from vgpuctl.controller.database.pool_rows import ImageRows, PoolRows
from vgpuctl.controller.database.quota_rows import QuotaRows
from vgpuctl.controller.database.restart_rows import RestartRows
from vgpuctl.controller.database.restored_rows import INCARNATION, RestoredRows
from vgpuctl.controller.database.room_rows import RoomRows
from vgpuctl.controller.database.rows import Changes
from vgpuctl.controller.database.secret_rows import SecretRows
from vgpuctl.controller.database.token_rows import TokenRows
from vgpuctl.controller.database.use_rows import UseRows
from vgpuctl.errors import HostCannot, Refused

_UPGRADE = "vgpuctl controller upgrade-db"


class DatabaseNewer(Refused):
    """A newer program made the database."""

    code = "database-newer"


class DatabaseOlder(Refused):
    """The database has to be upgraded before this program can use it."""

    code = "database-older"


class DatabaseReplaced(Refused):
    """The database was restored while this controller ran: it is another one now."""

    code = "database-replaced"


class Store:
    """What the controller keeps. `holder`: the name by which this controller holds hosts; another run has another.

    `version`: of the tables.
    """

    def __init__(self, database: Database, incarnation: str, version: str) -> None:
        self.database = database
        self.version = version
        self.incarnation = incarnation
        self.holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.clock = database.clock
        self.changes = Changes(self.clock)
        parts = (database, self.changes)
        self.controllers = ControllerRows(*parts)
        self.hosts = HostRows(*parts)
        self.views = HostViews(*parts)
        self.images = ImageRows(*parts)
        self.host_images = HostImageRows(*parts)
        self.rooms = RoomRows(*parts)
        self.pools = PoolRows(*parts)
        self.desktops = DesktopRows(*parts)
        self.moves = MoveRows(*parts)
        self.live_moves = LiveMoveRows(*parts)
        self.restarts = RestartRows(*parts)
        self.people = PeopleRows(*parts)
        self.places = PlaceRows(*parts)
        self.entitlements = EntitlementRows(*parts)
        self.quotas = QuotaRows(*parts)
        self.use = UseRows(*parts)
        self.tokens = TokenRows(*parts)
        self.personal_tokens = PersonalTokenRows(*parts)
        self.secrets = SecretRows(*parts)
        self.consoles = ConsoleRows(*parts)
        self.journal = JournalRows(*parts)
        self.answers = AnswerRows(*parts)
        self.restored = RestoredRows(*parts)

    def now(self) -> float:
        """Return the database's time, in seconds since 1970."""
        with self.database.read() as connection:
            return self.database.now(connection)

    def view_host(self, host_id: str) -> HostView | None:
        """Return what a look at a host needs; None: it was removed.

        Raises:
            DatabaseNewer, DatabaseOlder, DatabaseReplaced: as `check`.
        """
        view = self.views.read(host_id, self.holder)
        if view is not None and (view.version, view.incarnation) != (self.version, self.incarnation):
            self.check()
        return view

    def check(self) -> None:
        """Check that the database is still the one that was opened.

        Raises:
            DatabaseNewer, DatabaseOlder: its tables are those of another version now.
            DatabaseReplaced: it was restored.
        """
        with self.database.read() as connection:
            current, newest = versions(connection)
            if current is None or current != newest:
                raise version_error(self.database, current)
            incarnation = read_incarnation(connection)
        if incarnation != self.incarnation:
            raise DatabaseReplaced(
                f"the database {self.database.name} was restored: it was {self.incarnation}, and is {incarnation}",
                hint="start the controller again, then vgpuctl controller confirm-restore",
            )

    def close(self) -> None:
        """Close all connections."""
        self.database.close()


def open_store(url: str, *, alone: bool = False, clock: ControllerClock | None = None) -> Store:
    """Open a database that `upgrade` has made. `alone`: keep other controllers away from a file of SQLite.

    `clock`: another than this machine's; of a database of PostgreSQL its own time counts all the same.

    Raises:
        InvalidInput: it is no URL of a database. DatabaseUnreachable: it does not answer.
        DatabaseOlder, DatabaseNewer: its tables are those of another version. Locked: another controller has it.
    """
    database = Database(url, clock)
    try:
        if alone:
            database.take_alone()
        with database.read() as connection:
            check_server(database, connection)
            current, newest = versions(connection)
            if current is None or current != newest:
                raise version_error(database, current)
            incarnation = read_incarnation(connection)
    except BaseException:
        database.close()
        raise
    return Store(database, incarnation, current)


def upgrade(url: str, *, dry_run: bool = False) -> bool:
    """Make the tables of a database, or bring those of an older program to this one's; return whether it changed.

    `dry_run`: only return whether it would change.

    Raises:
        InvalidInput, DatabaseUnreachable, DatabaseNewer: as `open_store`.
    """
    database = Database(url)
    try:
        with database.write() as connection:
            check_server(database, connection)
            current, newest = versions(connection)
            if current == newest:
                return False
            if current is not None and not is_known(current):
                raise version_error(database, current)
            if dry_run:
                return True
            migrate(connection)
            known = select(schema.meta.c.value).where(schema.meta.c.key == INCARNATION)
            if connection.execute(known).first() is None:
                connection.execute(insert(schema.meta).values(key=INCARNATION, value=uuid.uuid4().hex))
            return True
    finally:
        database.close()


def read_incarnation(connection: Connection) -> str:
    """Return the incarnation of a database with tables."""
    return str(connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == INCARNATION)).scalar_one())


@functools.cache
def _script() -> tuple[Config, ScriptDirectory]:
    config = Config()
    config.set_main_option("script_location", "vgpuctl.controller.database:migrations")
    return config, ScriptDirectory.from_config(config)


def versions(connection: Connection) -> tuple[str | None, str | None]:
    """Return the version of a database's tables, None for none, and this program's."""
    return MigrationContext.configure(connection).get_current_revision(), _script()[1].get_current_head()


def is_known(version: str) -> bool:
    """Return whether this program knows tables of a version."""
    return any(one.revision == version for one in _script()[1].walk_revisions())


def migrate(connection: Connection, version: str = "head") -> None:
    """Bring the tables of a database to a version; one without tables gets them."""
    config, script = _script()

    def steps(current: object, _: object) -> object:
        return script._upgrade_revs(version, current)  # type: ignore[arg-type]

    with EnvironmentContext(config, script, fn=steps, destination_rev=version) as environment:
        environment.configure(connection=connection, target_metadata=schema.metadata, render_as_batch=True)
        environment.run_migrations()


def version_error(database: Database, current: str | None) -> Refused:
    """Return the error for a database whose tables are of another version; None: it has none."""
    if current is not None and not is_known(current):
        return DatabaseNewer(
            f"a newer vgpuctl made the database {database.name}: its tables are of version {current}",
            hint="install that version of vgpuctl here, too",
            version=current,
        )
    what = "has no tables yet" if current is None else f"has the tables of an older vgpuctl, version {current}"
    return DatabaseOlder(f"the database {database.name} {what}", hint=_UPGRADE, version=current)


def check_server(database: Database, connection: Connection) -> None:
    """Refuse a PostgreSQL that is too old.

    Raises:
        HostCannot: it is.
    """
    version = connection.dialect.server_version_info
    major = LOWEST_POSTGRESQL if database.is_sqlite or version is None else int(version[0])
    if major < LOWEST_POSTGRESQL:
        raise HostCannot(f"PostgreSQL {major} is too old: it must be {LOWEST_POSTGRESQL} or newer", check="database")
