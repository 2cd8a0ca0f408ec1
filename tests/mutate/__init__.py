# SPDX-License-Identifier: Apache-2.0
"""Bugs that are planted one at a time. Each names the rule that it breaks and the tests that must find it."""
