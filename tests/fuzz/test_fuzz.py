"""A thousand fuzzed commands, always the same ones; `make fuzz` runs twenty thousand others."""

import tempfile

import pytest
from fuzz import Fuzzer

from cdcd.training import validation

NUM_CASES = 1_000


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        # Validations of few noise levels: they would take longer than the tiny trainings before them.
        patch.setattr(validation, "NUM_LEVELS", 2)
        patch.setattr(tempfile, "tempdir", str(folder))
        yield Fuzzer(folder)


def test_every_command_ends_with_success_or_one_line(fuzzer):
    fuzzer.run(NUM_CASES)
    assert not fuzzer.problems, "\n".join(map(str, fuzzer.problems[:5]))
    assert sum(fuzzer.codes.values()) == NUM_CASES
    assert min(fuzzer.codes[0], fuzzer.codes[2]) > NUM_CASES / 10
