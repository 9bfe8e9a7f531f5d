"""Evaluation of trained models: systems, held-out text, judges, sweeps, reports and pictures."""
