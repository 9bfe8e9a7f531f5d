"""The tokenizer and the configuration of a run belong to its weights, which checksums tell."""

import json

import pytest
from tiny import cdcd_main, resume_tiny

from cdcd.training import run as runs
from cdcd.training.checkpoint import RunDirectory


def other_words(path):
    words = json.loads(path.read_text())["words"]
    path.write_text(json.dumps({"words": words[::-1]}))


def other_kind(path):
    path.with_name("symbols.json").write_bytes(path.read_bytes().replace(b"words", b"symbols"))
    path.unlink()


def other_setting(path):
    content = json.loads(path.read_text())
    content["config"]["process"]["t_max"] += 1
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer/words.json", other_words),
        ("tokenizer/words.json", other_kind),
        ("config.json", other_setting),
    ],
)
def test_a_file_that_does_not_belong_to_the_weights_is_named(run, capsys, name, change):
    change(run / name)
    for command in (("sample", run), ("train", "--resume", "--out", run, "--training.steps", 8)):
        assert cdcd_main(*command) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert str((run / name).parent) in message
        assert "not belong to the checkpoint" in message


def test_the_sizes_of_tokenizer_and_configuration_are_compared(run):
    """Also where there are no checksums: a vocabulary that grew, or lost a word."""
    words = json.loads((run / "tokenizer/words.json").read_text())["words"]
    for changed in (words[:-1], [*words, "more"]):
        (run / "tokenizer/words.json").write_text(json.dumps({"words": changed}))
        with pytest.raises(ValueError, match=f"has {len(changed) + 3} tokens, vocab_size in"):
            _ = RunDirectory(run).tokenizer


def test_what_a_resumed_run_changes_leaves_its_checksums(run):
    """The settings of the model and the data stay as an earlier version wrote them."""
    content = json.loads((run / "config.json").read_text())
    del content["config"]["process"]["t_min"], content["config"]["beam"]
    (run / "config.json").write_text(json.dumps(content))
    before = RunDirectory(run).belongings()
    changes = {"training.steps": 8, "sampling.num_steps": 3}
    RunDirectory(run).replace_config(runs.changed_config(RunDirectory(run), changes))
    assert RunDirectory(run).belongings() == before
    described = json.loads((run / "config.json").read_text())["config"]
    assert "t_min" not in described["process"]
    assert (described["training"]["steps"], described["sampling"]["num_steps"]) == (8, 3)


def test_a_checkpoint_of_an_earlier_version_is_read_with_a_warning(run, capsys):
    file = run / "checkpoints/step-00000006/checkpoint.json"
    described = json.loads(file.read_text())
    del described["belongs_to"]
    file.write_text(json.dumps(described))
    assert cdcd_main("sample", run) == 0
    message = capsys.readouterr().err
    assert message.startswith(f"cdcd: warning: {file.parent} was written by an earlier version")
    assert message.count("\n") == 1
    resume_tiny(run, changes={"training.steps": 8})
    assert cdcd_main("sample", run) == 0
    assert capsys.readouterr().err == ""
