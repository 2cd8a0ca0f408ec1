# SPDX-License-Identifier: Apache-2.0
"""Bugs that are planted one at a time, each named by the rule that it breaks, and the tests that have to find it."""
