# SPDX-License-Identifier: Apache-2.0
"""The real host behind the seams."""
