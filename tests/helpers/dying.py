"""A task that ends its process, in a module of its own: worker processes import nothing else."""

import os


def end_process(_: object) -> None:
    """Ends the process at once, as if it had been killed for want of memory."""
    os._exit(3)
