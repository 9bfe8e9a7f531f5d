"""A few of the trials that `make trials` does by the hundred."""

from trials import run_trials


def test_killed_commands_go_on_to_the_same_bytes():
    for tally in run_trials(["kills"], kills=9, interrupts=0, races=0, seed=0):
        assert (tally.trials, tally.right) == (3, 3), tally.problems


def test_one_of_several_processes_writes():
    for tally in run_trials(["locks"], kills=0, interrupts=0, races=1, seed=0):
        assert (tally.trials, tally.right) == (1, 1), tally.problems
