"""Runs on a data set at an address are those on its folder; a stranger's address is not opened."""

import shutil
from pathlib import Path

import pytest
from forks import end_of, fork_ranks
from ranks import run_on_rank
from tiny import cdcd_main, metrics, train_tiny

from cdcd.data import remote
from cdcd.data.prepare import PrepareConfig, prepare
from cdcd.evaluation.held_out import KnownDocuments, Shared, about_judge
from cdcd.training.checkpoint import RunDirectory

SMALL = {"data.length": 8, "training.steps": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A prepared data set, and the same run on its folder and on its address."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text("".join(f"the {n} cats sat on the mat\n" for n in range(60)))
    config = PrepareConfig(source=str(folder / "text.txt"), tokenizer="words", workers=1)
    prepare(config, folder / "set")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(remote.CACHE, str(folder / "cache"))
        for name, source in {"here": f"{folder}/set", "there": f"file://{folder}/set"}.items():
            train_tiny(folder / name, SMALL | {"data.source": source})
    return folder


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv(remote.CACHE, str(tmp_path / "cache"))
    remote.manifest.cache_clear()
    return tmp_path / "cache"


def weights(run):
    directory = RunDirectory(run)
    return (directory.folder(directory.steps()[-1]) / "weights.safetensors").read_bytes()


def test_a_run_on_an_address_is_the_run_on_the_folder(made):
    assert weights(made / "there") == weights(made / "here")
    there = RunDirectory(made / "there")
    assert there.config.data.source == f"file://{made}/set"
    assert there.text_hash == RunDirectory(made / "here").text_hash


def test_it_goes_on_where_nothing_is_cached(made, tmp_path, cache):
    runs = []
    for name in ("here", "there"):
        run = shutil.copytree(made / name, tmp_path / name)
        source = RunDirectory(run).config.data.source
        more = ("--data", source, "--training.steps", 6)
        assert cdcd_main("train", "--resume", "--out", run, *more) == 0
        runs.append(run)
    assert weights(runs[0]) == weights(runs[1]) != weights(made / "here")
    assert list(cache.rglob("train-00000.tokens"))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to find the ranks")
def test_two_ranks_fetch_once_and_train_what_one_process_trains(made, tmp_path):
    changes = SMALL | {"data.source": f"file://{made}/set"}
    output = tmp_path / "output"
    jobs = [{"out": str(tmp_path / "run"), "changes": changes}]
    codes = end_of(*fork_ranks(2, run_on_rank, jobs, output=output), seconds=120)
    assert codes == [0, 0], output.read_text()
    assert output.read_text().count("fetching ") == 1
    losses = [
        [row["loss"] for row in metrics(run) if "loss" in row]
        for run in (tmp_path / "run", made / "there")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    "command",
    [
        ("train", "--resume", "--out", "RUN", "--training.steps", "6"),
        ("evaluate", "RUN", "--judge", "JUDGE"),
        ("evaluate", "RUN", "--likelihood"),
    ],
    ids=" ".join,
)
def test_an_address_of_a_run_from_elsewhere_is_not_opened(command, made, tmp_path, cache, capsys):
    """Whoever made the run would learn who uses it, and where."""
    run = shutil.copytree(made / "there", tmp_path / "moved")
    names = {"RUN": run, "JUDGE": made / "here"}
    assert cdcd_main(*(names.get(word, word) for word in command)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"its data is said to be at file://{made}/set: give --data PATH to confirm" in line
    assert not cache.exists()


def test_a_run_is_tuned_on_the_address_of_its_parent(made, tmp_path):
    tuned = ("--preset", "demo", "--training.steps", 1, "--training.batch-size", 2)
    data = ("--init-from", made / "there", "--data", f"file://{made}/set")
    assert cdcd_main("train", *data, "--out", tmp_path / "tuned", *tuned) == 0


def test_the_split_of_a_parent_on_an_address_is_kept(made, tmp_path, capsys):
    config = PrepareConfig(
        source=str(made / "text.txt"),
        tokenizer=str(made / "set"),
        seed=1,
        valid_share=0.3,
        workers=1,
    )
    prepare(config, tmp_path / "anew")
    tuned = ("--preset", "demo", "--training.steps", 1, "--training.batch-size", 2)
    data = ("--init-from", made / "there", "--data", tmp_path / "anew")
    assert cdcd_main("train", *data, "--out", tmp_path / "tuned", *tuned) == 2
    assert "documents that it trained on" in capsys.readouterr().err


def test_an_address_without_a_data_set_leaves_no_run(made, tmp_path, capsys):
    options = ("--preset", "demo", "--data", f"file://{made}/nothing", "--out", tmp_path / "run")
    assert cdcd_main("train", *options) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"file://{made}/nothing is not a prepared data set" in line
    assert not (tmp_path / "run").exists()


class Known(KnownDocuments):
    """Documents of the systems that note which text is compared with them."""

    def __init__(self):
        super().__init__([], [])
        self.compared = []

    def shared_with(self, name, run):
        self.compared.append(run.data.source)
        return Shared(training=0, held_out=0)


def test_a_judge_from_elsewhere_is_compared_by_the_text_that_is_confirmed(made, tmp_path):
    """Not by what stands at the address that only the judge names."""
    moved = shutil.copytree(made / "there", tmp_path / "judge")
    url = f"file://{made}/set"
    here, there = (RunDirectory(made / name).config for name in ("here", "there"))
    known = Known()
    assert about_judge(str(moved), here, None, known)["disjoint"] is False
    assert known.compared == []
    assert about_judge(str(moved), there, str(made / "set"), known)["disjoint"]
    assert about_judge(str(made / "there"), here, None, known)["disjoint"]
    assert known.compared == [str(made / "set"), url]
