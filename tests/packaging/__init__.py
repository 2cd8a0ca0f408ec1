# SPDX-License-Identifier: Apache-2.0
"""Builds what people install: sdist, wheel and Debian package; `python3 tests/bootstrap.py packages` runs it.

It lies among the tests, because a package is good when it was installed, tried and removed in bare roots.
"""
