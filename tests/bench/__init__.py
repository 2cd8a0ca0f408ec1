"""Benchmarks: each prints a ratio measured in one run. A slow time never fails a test; different work does."""
