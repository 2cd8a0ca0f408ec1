# SPDX-License-Identifier: Apache-2.0
"""Images and pools."""

from __future__ import annotations

import uuid

from sqlalchemy import Connection, RowMapping, Table, delete, insert, select, update

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.restored_rows import read_restored, write_restored
from vgpuctl.controller.database.rows import (
    CONTROLLER,
    About,
    Rows,
    check_generation,
    columns_of,
    forget_crashes,
    image_of,
    nothing_called,
    pool_of,
    text_of,
)
from vgpuctl.controller.model import Image, Pool, PoolSpec, PoolState
from vgpuctl.controller.planning.changed_fields import changed_fields
from vgpuctl.controller.planning.pool_spec import refuse_shared_names
from vgpuctl.controller.planning.pool_vm import refuse_image
from vgpuctl.errors import Refused
from vgpuctl.value import Value, replace


class Change(Value):
    """What a request to store something did. `created`: it is new; `changed`: it is new, or differs from before."""

    changed: bool
    created: bool


class ImageRows(Rows):
    """The images of the fleet."""

    def list(self) -> tuple[Image, ...]:
        """Return all images, by name."""
        with self._database.read() as connection:
            return tuple(
                map(image_of, connection.execute(select(schema.image).order_by(schema.image.c.name)).mappings())
            )

    def find(self, name: str) -> Image:
        """Return an image.

        Raises:
            NotFound: there is none of this name.
        """
        with self._database.read() as connection:
            return image_of(_require(connection, schema.image, name, "image"))

    def put(self, image: Image, actor: str, if_generation: int | None = None) -> tuple[Image, Change]:
        """Store an image under its name; `id` and `generation` of the given one do not count.

        Raises:
            Stale: it was changed since. Refused: its file would be another one while desktops are made of it.
        """
        with self._write() as connection:
            row = _by_name(connection, schema.image, image.name, lock=True)
            if row is None:
                check_generation(f"image {image.name}", 0, if_generation)
                new = replace(image, id=str(uuid.uuid4()), generation=1)
                connection.execute(insert(schema.image).values(**columns_of(new)))
                text = f"{image.name} {image.version}: {image.path}"
                self._note(connection, "image-added", text, actor, About(), changed_fields(None, new))
                return new, Change(changed=True, created=True)
            before = image_of(row)
            check_generation(f"image {image.name}", before.generation, if_generation)
            after = replace(image, id=before.id, generation=before.generation)
            if after == before:
                return before, Change(changed=False, created=False)
            if (after.path, after.sha256) != (before.path, before.sha256) and _uses_image(connection, before.id):
                raise Refused(
                    f"desktops are made of image {image.name}, so its file stays {before.path}",
                    hint=f"add the new file under another name, such as {image.name}-2, and change the pool's image",
                )
            after = replace(after, generation=before.generation + 1)
            connection.execute(update(schema.image).where(schema.image.c.id == before.id).values(**columns_of(after)))
            text = f"{image.name} {image.version}: {image.path}"
            self._note(connection, "image-changed", text, actor, About(), changed_fields(before, after))
            return after, Change(changed=True, created=False)

    def delete(self, name: str, actor: str) -> None:
        """Delete an image that no pool and no desktop uses.

        Raises:
            NotFound, Refused: there is none, or it is used.
        """
        with self._write() as connection:
            image = image_of(_require(connection, schema.image, name, "image"))
            pools = (
                connection.execute(select(schema.pool.c.name).where(schema.pool.c.image_id == image.id)).scalars().all()
            )
            of_image = select(schema.desktop.c.name).where(schema.desktop.c.image_id == image.id)
            desktops = connection.execute(of_image.order_by(schema.desktop.c.name).limit(6)).scalars().all()
            if pools or desktops:
                names = ", ".join(desktops[:5]) + (", ..." if len(desktops) > 5 else "")
                users = [f"pools {', '.join(pools)}"] * bool(pools) + [f"desktops {names}"] * bool(desktops)
                raise Refused(
                    f"image {name} is used by {' and '.join(users)}",
                    hint="change the image of the pools; desktops get it at their next refresh",
                    pools=list(pools),
                    desktops=list(desktops[:5]),
                )
            connection.execute(delete(schema.image).where(schema.image.c.id == image.id))
            self._note(connection, "image-deleted", name, actor, About(), changed_fields(image, None))


class PoolRows(Rows):
    """The pools of the fleet."""

    def list(self) -> tuple[Pool, ...]:
        """Return all pools, by name."""
        with self._database.read() as connection:
            return tuple(map(pool_of, connection.execute(select(schema.pool).order_by(schema.pool.c.name)).mappings()))

    def find(self, name: str) -> Pool:
        """Return a pool.

        Raises:
            NotFound: there is none of this name.
        """
        with self._database.read() as connection:
            return pool_of(_require(connection, schema.pool, name, "pool"))

    def put(self, name: str, spec: PoolSpec, actor: str, if_generation: int | None = None) -> tuple[Pool, Change]:
        """Store what a pool should be.

        Raises:
            NotFound: there is no such image. InvalidInput: another pool has desktops of such names.
            Refused: its kind would change, or it is being deleted. Stale: it was changed since.
        """
        with self._write() as connection:
            image = image_of(_require(connection, schema.image, spec.image, "image"))
            others = connection.execute(
                select(schema.pool).order_by(schema.pool.c.id).with_for_update(key_share=True)
            ).mappings()
            pools = {row["name"]: pool_of(row) for row in others}
            before = pools.pop(name, None)
            check_generation(f"pool {name}", 0 if before is None else before.generation, if_generation)
            if (
                before is not None
                and (before.spec, before.image_id) == (spec, image.id)
                and not _waits_for_spec(connection, before)
            ):
                return before, Change(changed=False, created=False)
            if before is None or before.image_id != image.id:
                refuse_image(spec, image)
            refuse_shared_names(name, spec, {one.name: one.spec for one in pools.values()})
            if before is None:
                new = Pool(id=str(uuid.uuid4()), name=name, spec=spec, image_id=image.id)
                connection.execute(insert(schema.pool).values(**_pool_row(new)))
                self._note(connection, "pool-added", _summary(new), actor, About(pool=name), changed_fields(None, new))
                return new, Change(changed=True, created=True)
            if before.state is PoolState.DRAINING:
                raise Refused(f"pool {name} is being deleted", hint=f"vgpuctl controller show-pool {name}")
            was_imported = _waits_for_spec(connection, before)
            if before.spec.kind is not spec.kind and not was_imported:
                raise Refused(
                    f"pool {name} is {before.spec.kind}: its kind cannot change",
                    hint=f"vgpuctl controller delete-pool {name}; then make it again",
                )
            after = replace(before, spec=spec, image_id=image.id, generation=before.generation + 1)
            if was_imported:
                restored = read_restored(connection, lock=True)
                left = tuple(one for one in restored.imported_pools if one != before.id)
                write_restored(self._database, connection, replace(restored, imported_pools=left))
                after = replace(after, reason=f"imported: vgpuctl controller resume-pool {name}")
            connection.execute(update(schema.pool).where(schema.pool.c.id == before.id).values(**_pool_row(after)))
            changed = changed_fields(before, after)
            self._note(connection, "pool-changed", _summary(after), actor, About(pool=name), changed)
            return after, Change(changed=True, created=False)

    def set_state(
        self, name: str, state: PoolState, reason: str | None, actor: str, *, by_errors: bool = False
    ) -> Pool:
        """Pause a pool, or let it go on.

        Raises:
            NotFound, Refused: there is none, or it is being deleted.
        """
        with self._write() as connection:
            before = pool_of(_require(connection, schema.pool, name, "pool"))
            if before.state is PoolState.DRAINING:
                raise Refused(f"pool {name} is being deleted", hint=f"vgpuctl controller show-pool {name}")
            if state is PoolState.ACTIVE and _waits_for_spec(connection, before):
                raise Refused(
                    f"pool {name} was imported from records on hosts, which do not say what it should be",
                    hint=f"vgpuctl controller show-pool {name}; write its spec, then: vgpuctl controller ensure-pool "
                    f"{name} -f FILE",
                    pool=name,
                )
            after = replace(before, state=state, reason=reason, paused_by_errors=False)
            if after != before:
                after = replace(after, generation=before.generation + 1)
                if state is PoolState.ACTIVE:  # errors before that no longer count
                    failed = (schema.desktop.c.pool_id == before.id) & (schema.desktop.c.errors > 0)
                    connection.execute(update(schema.desktop).where(failed).values(errors=0, not_before=0.0))
                    forget_crashes(connection, schema.desktop.c.pool_id == before.id)
                connection.execute(update(schema.pool).where(schema.pool.c.id == before.id).values(**_pool_row(after)))
                text = f"{name}: {state}" + (f": {reason}" if reason else "")
                changed = changed_fields(before, after)
                self._note(connection, f"pool-{state}", text, actor, About(pool=name), changed)
            return after

    def note_message(self, name: str, text: str, count: int, actor: str) -> None:
        """Note in the journal which text was shown to the users of a pool, in so many desktops."""
        with self._write() as connection:
            self._note(connection, "message", f"{name}: shown in {count} desktops: {text}", actor, About(pool=name))

    def delete(self, name: str, actor: str) -> Pool:
        """Delete a pool with its desktops: each goes when its host says so, then the pool.

        Raises:
            NotFound: there is none.
        """
        with self._write() as connection:
            pool = pool_of(_require(connection, schema.pool, name, "pool"))
            connection.execute(
                update(schema.desktop)
                .where((schema.desktop.c.pool_id == pool.id) & schema.desktop.c.absent.is_(False))
                .values(absent=True, not_before=0.0)
            )
            unplaced = (schema.desktop.c.pool_id == pool.id) & schema.desktop.c.host_id.is_(None)
            connection.execute(delete(schema.desktop).where(unplaced))  # no host has anything of them
            hosts = select(schema.desktop.c.host_id).where(schema.desktop.c.pool_id == pool.id).distinct()
            for host_id in connection.execute(hosts).scalars():
                self._changes.touch(host_id)
            gone = replace(pool, state=PoolState.DRAINING, reason="it is being deleted", generation=pool.generation + 1)
            connection.execute(update(schema.pool).where(schema.pool.c.id == pool.id).values(**_pool_row(gone)))
            self._note(connection, "pool-deleting", name, actor, About(pool=name), changed_fields(pool, gone))
            return gone

    def forget(self, pool_id: str) -> bool:
        """Remove a pool that is being deleted, once its last desktop is gone; return whether it is removed."""
        with self._write() as connection:
            row = (
                connection.execute(
                    select(schema.pool).where(schema.pool.c.id == pool_id).with_for_update(key_share=True)
                )
                .mappings()
                .first()
            )
            one = select(schema.desktop.c.id).where(schema.desktop.c.pool_id == pool_id).limit(1)
            if (
                row is None
                or pool_of(row).state is not PoolState.DRAINING
                or connection.execute(one).first() is not None
            ):
                return False
            connection.execute(delete(schema.pool).where(schema.pool.c.id == pool_id))
            self._note(connection, "pool-deleted", row["name"], CONTROLLER, About(pool=row["name"]))
            return True


def _waits_for_spec(connection: Connection, pool: Pool) -> bool:
    return pool.id in read_restored(connection).imported_pools


def _summary(pool: Pool) -> str:
    spec = pool.spec
    return f"{pool.name}: {spec.kind}, image {spec.image}, at most {spec.maximum}, spare {spec.spare}"


def _pool_row(pool: Pool) -> dict[str, object]:
    return {**columns_of(pool), "spec": text_of(pool.spec), "state": pool.state.value}


def _uses_image(connection: Connection, image_id: str) -> bool:
    one = select(schema.desktop.c.id).where(schema.desktop.c.image_id == image_id).limit(1)
    return connection.execute(one).first() is not None


def _by_name(connection: Connection, table: Table, name: str, *, lock: bool = False) -> RowMapping | None:
    statement = select(table).where(table.c.name == name)
    return connection.execute(statement.with_for_update(key_share=True) if lock else statement).mappings().first()


def _require(connection: Connection, table: Table, name: str, what: str) -> RowMapping:
    row = _by_name(connection, table, name, lock=True)
    if row is None:
        raise nothing_called(connection, table, what, name)
    return row
