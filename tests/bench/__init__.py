"""Benchmarks: ratios measured in one run. They print and never fail on a time, only when the work was not the same."""
