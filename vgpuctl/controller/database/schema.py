# SPDX-License-Identifier: Apache-2.0
"""The tables. Times are seconds since 1970 by the database's clock; a value with a form of its own is JSON text.

A desktop's `can_take`, `reported_generation` repeat what is in its `report`, so that a query finds those for a user.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

NAME = String(255)
ID = String(36)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

FORMER_TABLES = ("begun_sign_in",)
"""Those of older versions."""

meta = Table("meta", metadata, Column("key", NAME, primary_key=True), Column("value", Text, nullable=False))

image = Table(
    "image",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", NAME, nullable=False, unique=True),
    Column("version", NAME, nullable=False),
    Column("path", Text, nullable=False),
    Column("os", NAME, nullable=False),
    Column("sha256", String(64)),
    Column("bytes", BigInteger),
    Column("retired", Boolean, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("file", Text),
    Column("url", Text),
)

pool = Table(
    "pool",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", NAME, nullable=False, unique=True),
    Column("spec", Text, nullable=False),
    Column("image_id", ID, ForeignKey(image.c.id), nullable=False),
    Column("state", NAME, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("reason", Text),
    Column("paused_by_errors", Boolean, nullable=False),
)

host = Table(
    "host",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", NAME, nullable=False, unique=True),
    Column("address", Text, nullable=False),
    Column("host_key", Text),
    Column("labels", Text, nullable=False),
    Column("state", NAME, nullable=False),
    Column("machine_id", NAME),
    Column("boot_id", NAME),
    Column("driver", NAME),
    Column("agent_version", NAME),
    Column("held", Text),
    Column("problem", Text),
    Column("seen_at", Float),
    Column("generation", Integer, nullable=False),
    Column("moves_live", Boolean, nullable=False, server_default=false()),
)

host_lease = Table(
    "host_lease",
    metadata,
    Column("host_id", ID, ForeignKey(host.c.id, ondelete="CASCADE"), primary_key=True),
    Column("holder", NAME, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("expires_at", Float, nullable=False),
)

controller = Table(
    "controller", metadata, Column("holder", NAME, primary_key=True), Column("expires_at", Float, nullable=False)
)
"""The controllers that live, also those without a host: each takes its share of the hosts."""

host_room = Table(
    "host_room",
    metadata,
    Column("host_id", ID, ForeignKey(host.c.id, ondelete="CASCADE"), primary_key=True),
    Column("room", Text, nullable=False),
    Column("refused", Text, nullable=False),
    Column("version", Integer, nullable=False),
)
"""What a host has room for; `refused`: until when nothing of a profile is placed there, by profile."""

host_image = Table(
    "host_image",
    metadata,
    Column("host_id", ID, ForeignKey(host.c.id, ondelete="CASCADE"), primary_key=True),
    Column("image_id", ID, primary_key=True),
    Column("path", Text, nullable=False),
    Column("copied", Boolean, nullable=False),
    Column("state", NAME, nullable=False),
    Column("bytes", BigInteger),
    Column("have", BigInteger, nullable=False),
    Column("code", NAME),
    Column("error", Text),
    Column("hint", Text),
    Column("errors", Integer, nullable=False),
    Column("not_before", Float, nullable=False),
)
"""It refers to no row of `image`: a copy is deleted on the host after that."""

person = Table(
    "person",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("realm", NAME),
    Column("password", Text),
    Column("disabled", Boolean, nullable=False, server_default=false()),
    Column("shown", NAME),
    Column("signed_in_at", Float),
    Column("generation", Integer, nullable=False, server_default="1"),
)
"""Everybody who ever had a desktop, or can sign in: who assigns one locks the user's row first."""

membership = Table(
    "membership",
    metadata,
    Column("person", NAME, ForeignKey(person.c.name, ondelete="CASCADE"), primary_key=True),
    Column("group_name", NAME, primary_key=True, index=True),
)

entitlement = Table(
    "entitlement",
    metadata,
    Column("who", NAME, primary_key=True),
    Column("scope", ID, primary_key=True),
    Column("pool_id", ID, ForeignKey(pool.c.id, ondelete="CASCADE"), index=True),
    Column("right", NAME, nullable=False),
)
"""Who may what: `scope` is the pool's id again, or `FLEET`, so that each has one right there."""
FLEET = "fleet"

quota = Table(
    "quota",
    metadata,
    Column("who", NAME, primary_key=True),
    Column("desktops", Integer),
    Column("running", Integer),
    Column("gpu_mib", BigInteger),
    Column("set_by", NAME, nullable=False),
    Column("generation", Integer, nullable=False, server_default="1"),
)

web_session = Table(
    "web_session",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("person", NAME, ForeignKey(person.c.name, ondelete="CASCADE"), nullable=False, index=True),
    Column("created_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("address", NAME, nullable=False),
)

known_place = Table(
    "known_place",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("person", NAME, ForeignKey(person.c.name, ondelete="CASCADE"), nullable=False, index=True),
    Column("seen_at", Float, nullable=False),
    Column("noted_at", Float, nullable=False),
)
"""From where people sign in; `digest`: of account and network. `noted_at`: when the journal got an entry of that."""

desktop = Table(
    "desktop",
    metadata,
    Column("id", ID, primary_key=True),
    Column("pool_id", ID, ForeignKey(pool.c.id), nullable=False, index=True),
    Column("name", NAME, nullable=False, unique=True),
    Column("mac", String(17), nullable=False, unique=True),
    Column("image_id", ID, ForeignKey(image.c.id), nullable=False),
    Column("host_id", ID, ForeignKey(host.c.id), index=True),
    Column("profile", NAME),
    Column("power_on", Boolean, nullable=False),
    Column("absent", Boolean, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("user", NAME, index=True),
    Column("assigned_at", Float),
    Column("handed_out", Boolean, nullable=False),
    Column("lease_until", Float),
    Column("not_before", Float, nullable=False),
    Column("errors", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("report", Text),
    Column("can_take", Boolean, nullable=False),
    Column("reported_generation", Integer, nullable=False),
    Column("restart_at", Float),
    Column("restart_at_once", Boolean, nullable=False, server_default=false()),
    Column("restart_error", Text),
    Column("moving_to", ID, ForeignKey(host.c.id)),
    Index("ix_desktop_takeable", "pool_id", "can_take", "user"),
)

use_span = Table(
    "use_span",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("desktop_id", ID, nullable=False),
    Column("desktop", NAME, nullable=False),
    Column("pool", NAME, nullable=False),
    Column("person", NAME, nullable=False),
    Column("began_at", Float, nullable=False, index=True),
    Column("until_at", Float, index=True),
    Column("is_on", Boolean, nullable=False),
    Column("logged_on", Boolean),
    Column("gpu_mib", BigInteger, nullable=False),
    Column("busy_known_seconds", Float, nullable=False, server_default="0"),
    Column("busy_seconds", Float, nullable=False, server_default="0"),
    Column("memory_known_seconds", Float, nullable=False, server_default="0"),
    Column("memory_mib_seconds", Float, nullable=False, server_default="0"),
    Column("memory_peak_mib", BigInteger),
    Index("ix_use_span_open", "desktop_id", "until_at"),
)
"""A time in which a desktop's use did not change; without an end it goes on. It outlives desktop, pool and person.

`gpu_mib` is what it was given of GPUs; the columns after it say what it used of that, as `model.MeasuredUse`.
"""

refusal = Table(
    "refusal",
    metadata,
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("pool", NAME, primary_key=True),
    Column("person", NAME, primary_key=True),
    Column("reason", NAME, primary_key=True),
    Column("count", Integer, nullable=False),
)
"""How many requests for a desktop were refused on a day since 1970 (UTC), by the error's code."""

watched_screen = Table(
    "watched_screen",
    metadata,
    Column("desktop_id", ID, ForeignKey(desktop.c.id, ondelete="CASCADE"), primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("person", NAME, nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("closed_at", Float),
)
"""Who else than its user saw a desktop's screen last, in the assignment of this generation."""

one_time_secret = Table(
    "one_time_secret",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("kind", NAME, nullable=False),
    Column("state", Text, nullable=False),
    Column("expires_at", Float, nullable=False, index=True),
)
"""What secrets open that are good once, perhaps at another controller: a return from an OIDC issuer, a console."""

token = Table(
    "token",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("role", NAME),
    Column("digest", String(64), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("right", NAME),
    UniqueConstraint("digest"),
)

token_pool = Table(
    "token_pool",
    metadata,
    Column("token", NAME, ForeignKey(token.c.name, ondelete="CASCADE"), primary_key=True),
    Column("pool_id", ID, ForeignKey(pool.c.id, ondelete="CASCADE"), primary_key=True),
)
"""The pools on which a token has its right."""

personal_token = Table(
    "personal_token",
    metadata,
    Column("person", NAME, ForeignKey(person.c.name, ondelete="CASCADE"), primary_key=True),
    Column("name", NAME, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    UniqueConstraint("digest"),
)
"""Tokens with which programs are a person."""

event = Table(
    "event",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    Column("kind", NAME, nullable=False),
    Column("text", Text, nullable=False),
    Column("actor", NAME, nullable=False),
    Column("pool", NAME),
    Column("desktop", NAME),
    Column("host", NAME),
    Column("user", NAME),
    Column("actor_kind", NAME),
    Column("address", NAME),
    Column("changed", Text),
)
"""The journal: triggers refuse each change of an entry, and deleting one that is not old (`model.LEAST_EVENT_DAYS`)."""

answer = Table(
    "answer",
    metadata,
    Column("token", NAME, primary_key=True),
    Column("key", NAME, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("status", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("at", Float, nullable=False),
)
"""Answers to requests with an `Idempotency-Key`, for a day."""
