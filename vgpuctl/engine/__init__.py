# SPDX-License-Identifier: Apache-2.0
"""Observe, claim, run steps, wait, undo, reconcile."""
