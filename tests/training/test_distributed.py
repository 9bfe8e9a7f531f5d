"""Several ranks train the run that one process trains; what dies is resumed, or says what to do.

The ranks are forked processes that meet by gloo on the CPU, and train many tiny models one after another
(`ranks.py`). One test has torchrun's own agent start the ranks, which also restarts what was killed.
"""

import fcntl
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import end_of, fork, fork_ranks, wait_for
from ranks import FAULTS, run_on_rank, train
from tiny import cdcd_main, contents, metrics, silent, tiny_options
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import cdcd
from cdcd.training import run as runs
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.distributed import ALONE, World
from cdcd.training.parallel import check_shares

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not Path("/proc").is_dir(),
    reason="needs torch.distributed, and /proc to find the ranks",
)

BASE = {"training.batch_size": 12, "training.steps": 4, "training.clip_norm": 0.5}
KINDS: dict[str, dict[str, Any]] = {
    "diffusion": {},
    "accumulate": {"training.accumulate": 2},
    "autoregressive": {"model": "autoregressive"},
    "autoregressive accumulate": {"model": "autoregressive", "training.accumulate": 3},
    "masked": {"model": "masked", "training.accumulate": 2},
    "muon": {"training.optimiser": "muon"},
    "translation": {"task": "translation"},
    "translation baseline": {"task": "translation", "model": "autoregressive"},
    "options": {
        **{"training.optimiser": "muon", "training.weight_decay": 0.5},
        **{"data.random_length_share": 0.5, "network.output_prior": True},
        **{"network.zero_gates": True, "network.query_key_norm": True},
    },
    "no time": {"network.time_input": False, "objective.self_conditioned_share": 0.3},
}
CASES = [(kind, strategy) for kind in KINDS for strategy in ("ddp", "fsdp")]
# Translators are not sharded.
CASES = [case for case in CASES if case[1] == "ddp" or "translation" not in case[0]]
for case in (("autoregressive", "fsdp"), ("autoregressive accumulate", "ddp"), ("no time", "fsdp")):
    CASES.remove(case)
DISTILLED = {
    "distillation.teacher_steps": 8,
    "distillation.num_steps": 2,
    "distillation.round_steps": 2,
}
TWELVE = {"training.steps": 12, "training.checkpoint_every": 0, "training.log_every": 4}
LONG = BASE | {"training.steps": 60, "training.checkpoint_every": 20}


def run_jobs(ranks: int, folder: Path, jobs: list[dict[str, Any]]) -> None:
    output = folder / "output"
    codes = end_of(*fork_ranks(ranks, run_on_rank, jobs, output=output), seconds=180)
    assert codes == [0] * ranks, output.read_text()


def job(out: Path, *changes: dict[str, Any], **more: Any) -> dict[str, Any]:
    merged = {name: value for each in (BASE, *changes) for name, value in each.items()}
    return {"out": str(out), "changes": merged, **more}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """All trainings on two ranks, in one launch, shared by the workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "two-ranks"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "done").exists():
            jobs = [
                job(shared / f"{kind} {strategy}", KINDS[kind], {"training.strategy": strategy})
                for kind, strategy in CASES
            ]
            jobs += [job(shared / fault, *_fault_changes(fault), fault=fault) for fault in FAULTS]
            jobs.append(job(shared / "distilled", DISTILLED, teacher=str(shared / "diffusion ddp")))
            jobs.append(job(shared / "long", LONG))
            jobs.append(job(shared / "stopped", TWELVE, stop_at=7))
            jobs.append({"out": str(shared / "stopped"), "changes": {}, "resume": True})
            run_jobs(2, shared, jobs)
            (shared / "done").touch()
    return shared


def _fault_changes(fault: str) -> list[dict[str, Any]]:
    return [KINDS["autoregressive"]] if "divides" in fault else []


def differences(run: Path, expected: Path) -> dict[str, float]:
    """The largest relative differences of losses, gradients' norms, weights and warp."""
    rows = zip(metrics(run), metrics(expected), strict=True)
    pairs = [(a[k], b[k]) for a, b in rows for k in ("loss", "valid_loss") if k in b]
    norms = zip(*(json.loads((r / "norms.json").read_text()) for r in (run, expected)), strict=True)
    weights, wanted = (RunDirectory(r).load().weights for r in (run, expected))
    assert weights.keys() == wanted.keys()

    def furthest(is_warp: bool) -> float:
        names = [name for name in wanted if name.startswith("warp.") == is_warp]
        return max([float((weights[n] - wanted[n]).abs().max()) for n in names], default=0.0)

    return {
        "losses": max(abs(a / b - 1) for a, b in pairs),
        "norms": max(abs(a / b - 1) for a, b in norms),
        "weights": furthest(False),
        "warp": furthest(True),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_what_one_process_trains(trained, tmp_path, kind):
    alone = train(job(tmp_path / "alone", KINDS[kind]))
    for strategy in [strategy for each, strategy in CASES if each == kind]:
        found = differences(trained / f"{kind} {strategy}", alone)
        assert found["losses"] < 2e-6, strategy
        assert found["norms"] < 2e-5, strategy
        # Without rotary positions the biases of keys have no gradient but its rounding, of which Adam
        # makes steps; losses and norms do not depend on them.
        assert found["weights"] < (5e-4 if "translation" in kind else 2e-5), strategy
        assert found["warp"] < 1e-6, strategy


def test_two_ranks_distil_what_one_process_distils(trained, tmp_path):
    alone = job(tmp_path / "alone", DISTILLED, teacher=str(trained / "diffusion ddp"))
    found = differences(trained / "distilled", train(alone))
    # Losses of so small a network are differences of nearly equal numbers; their gradients are not.
    assert found["norms"] < 2e-5
    assert found["weights"] < 2e-5
    assert found["warp"] == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_exchange_would_be_noticed(trained, tmp_path, fault):
    """A power check of the test above."""
    alone = train(job(tmp_path / "alone", *_fault_changes(fault)))
    found = differences(trained / fault, alone)
    assert found["losses"] > 2e-5 or found["norms"] > 2e-3 or found["warp"] > 1e-4, found


def test_a_signal_to_one_rank_stops_all_at_one_step(trained, tmp_path):
    said = [(trained / "stopped" / f"stopped-{rank}").read_text() for rank in (0, 1)]
    assert said[0] == said[1]
    assert (
        "stopped at step 10 and saved; go on with: torchrun --nproc-per-node 2 -m cdcd" in said[0]
    )
    alone = train(job(tmp_path / "alone", TWELVE))
    rows = [row["step"] for row in metrics(alone)]
    assert [row["step"] for row in metrics(trained / "stopped")] == rows == [4, 8, 12, 12]
    for row, wanted in zip(metrics(trained / "stopped"), metrics(alone), strict=True):
        name = "loss" if "loss" in wanted else "valid_loss"
        assert row[name] == pytest.approx(wanted[name], rel=1e-5)


# Checkpoints


def test_a_checkpoint_of_two_ranks_goes_on_with_one_and_with_three(trained, tmp_path):
    alone = train(job(tmp_path / "alone", {"training.steps": 6}))
    jobs = []
    for saved, strategy, ranks in (
        ("ddp", "auto", 1),
        ("fsdp", "auto", 1),
        ("ddp", "fsdp", 3),
        ("fsdp", "fsdp", 3),
        ("fsdp", "ddp", 3),
    ):
        out = tmp_path / f"{saved} {strategy} {ranks}"
        shutil.copytree(trained / f"diffusion {saved}", out)
        changes = {"training.steps": 6, "training.strategy": strategy}
        jobs.append({"out": str(out), "changes": changes, "resume": True, "ranks": ranks})
    run_jobs(3, tmp_path, [j for j in jobs if j["ranks"] == 3])
    wanted = {row["step"]: row["loss"] for row in metrics(alone) if "loss" in row}
    for each in jobs:
        if each["ranks"] == 1:
            train(each)
        found = {row["step"]: row["loss"] for row in metrics(Path(each["out"])) if "loss" in row}
        assert found == pytest.approx(wanted, rel=2e-6), each
        has_shards = (RunDirectory(Path(each["out"])).folder(6) / "sharded").exists()
        assert has_shards == (each["ranks"] == 3 and "fsdp" in each["changes"].values())


def test_a_sharded_checkpoint_samples_and_notices_damage(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained / "diffusion fsdp", run)
    assert cdcd.load(run).complete()
    assert cdcd_main("train", "--out", tmp_path / "tuned", "--init-from", run,
                     *tiny_options({"training.steps": 1})) == 0  # fmt: skip
    shard = RunDirectory(run).folder(4) / "sharded" / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged: sharded/__1_0.distcp .* use the one before"):
        runs.resume(run, changes={"training.steps": 6}, console=silent())
    runs.resume(run, changes={"training.steps": 6}, checkpoint=2, console=silent()).train()


# Ranks that die, through the command line


def launch(folder: Path, *command: object) -> None:
    """Runs a command on two ranks as torchrun does, which starts them again once; they are forked."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=1,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
    )

    def on_rank() -> None:
        (folder / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
        if code := cdcd_main(*command):
            sys.exit(code)

    elastic_launch(config, on_rank)()


def wait_for_step(run: Path, step: int, has_ended: Callable[[], bool]) -> None:
    """Waits until the log of a run that several ranks train has come to `step`."""
    log = run / "metrics.jsonl"

    def has_come() -> bool:
        assert not has_ended()
        return log.exists() and any(row["step"] >= step for row in whole_lines(log))

    wait_for(has_come, 90)


def whole_lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().split("\n")[:-1]]


def test_torchrun_starts_again_after_a_kill_and_comes_to_the_same_end(trained, tmp_path):
    run = tmp_path / "run"
    command = ("train", "--resume", "auto", "--out", run, *tiny_options(LONG))
    output = tmp_path / "output"
    process = fork(launch, tmp_path, *command, output=output)
    wait_for_step(run, 25, lambda: not process.is_alive())
    os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
    assert end_of(process) == [0], output.read_text()
    assert metrics(run) == metrics(trained / "long")
    last = [contents(RunDirectory(r).folder(60)) for r in (run, trained / "long")]
    assert last[0] == last[1]
    # The same command once more has nothing to do, and with another setting it says what is fixed.
    assert cdcd_main(*command) == 0
    assert cdcd_main(*command, "--data.length", 20) == 2


def test_a_killed_rank_ends_the_others_and_leaves_what_loads(tmp_path):
    """Kills a rank while every step is saved in shards, so most likely in the middle of it."""
    run, output = tmp_path / "run", tmp_path / "output"
    changes = BASE | {
        "training.strategy": "fsdp",
        "training.steps": 5000,
        "training.checkpoint_every": 1,
    }
    options = ("train", "--out", run, *tiny_options(changes))
    ranks = fork_ranks(2, cdcd_main, *options, output=output)
    wait_for_step(run, 4, lambda: not all(rank.is_alive() for rank in ranks))
    time.sleep(random.Random(0).uniform(0, 0.2))
    ranks[1].kill()
    assert end_of(*ranks) == [2, -signal.SIGKILL]
    said = output.read_text()
    assert said.count("another rank does not answer") == 1, said
    assert f"the last checkpoint is {run}" in said
    step = RunDirectory(run).steps()[-1]
    assert step >= 3
    assert cdcd.load(run).complete()
    runs.resume(run, changes={"training.steps": step + 2}, console=silent()).train()
    assert RunDirectory(run).steps()[-1] == step + 2


def test_a_batch_that_cannot_be_shared_is_said_once(tmp_path):
    with pytest.raises(ValueError, match=r"batch_size \(12\) must be a multiple .* \(5 × 1 = 5\)"):
        check_shares(12, 1, World(rank=3, size=5))
    check_shares(12, 4, World(rank=2, size=3))
    check_shares(12, 12, ALONE)
    options = ("train", "--out", tmp_path / "run", *tiny_options(BASE | {"training.batch_size": 9}))
    output = tmp_path / "output"
    assert 0 not in end_of(*fork_ranks(2, cdcd_main, *options, output=output))
    said = output.read_text()
    assert said.count("training.batch_size (9) must be a multiple of ranks") == 1, said
    assert "cdcd/cli" not in said
    assert not (tmp_path / "run").exists()
