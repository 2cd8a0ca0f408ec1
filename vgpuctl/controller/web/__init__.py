# SPDX-License-Identifier: Apache-2.0
"""The controller's web page: what people see of a fleet in a browser."""
