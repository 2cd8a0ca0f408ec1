# SPDX-License-Identifier: Apache-2.0
"""The words of the program as frozen values, and the seams to the outside worlds (`seams`)."""
