# SPDX-License-Identifier: Apache-2.0
"""The controller's database: SQLite by default, or PostgreSQL. `store.open_store` opens it."""
