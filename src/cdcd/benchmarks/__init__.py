"""Benchmarks: how fast training and sampling are, beside what the device can do."""
