"""Recordings of a computation that need no GPU."""

from dataclasses import fields

from cdcd.diffusion.estimator import Estimate


def overwritten(work):
    """Stands in for a CUDA graph: the results of all replays share memory."""
    first = work()

    def replay():
        found = work()
        for field in fields(Estimate):
            place = getattr(first, field.name)
            if place is not None:
                place.copy_(getattr(found, field.name))
        return first

    return replay
