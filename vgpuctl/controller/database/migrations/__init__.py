# SPDX-License-Identifier: Apache-2.0
"""Alembic's steps from one version of the tables to the next; `versions` has one module each."""
