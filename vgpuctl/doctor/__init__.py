# SPDX-License-Identifier: Apache-2.0
"""Checks of a host: what was seen -> what is wrong with it. Pure; `engine.diagnose` gathers what they look at."""
