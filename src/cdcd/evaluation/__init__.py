"""Exact oracles, metrics and plots."""
