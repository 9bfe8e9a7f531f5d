"""Benchmarks: the speed of training and of sampling, beside the device's own rate."""
