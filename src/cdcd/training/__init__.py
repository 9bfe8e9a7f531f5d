"""Training: one Trainer for every model."""
