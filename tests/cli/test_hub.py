"""Models on a hub: pushed with a card, loaded by hf:owner/name, refused where they are not safe to read."""

import json
import os
import subprocess
import sys

import pytest
from fake_hub import fake_hub
from tiny import train_tiny

COMMANDS = """
import contextlib, io, json, sys
from cdcd.cli import main
done = []
for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command)
    done.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(done))
"""
LARGE = 10**12


def run_commands(place, endpoint, commands):
    """Runs commands in one process that knows a hub by its address; returns code, stdout and stderr of each."""
    env = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(place / "hf"), "HF_TOKEN": "hf_x"}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    process = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps([list(map(str, c)) for c in commands])],
        capture_output=True,
        text=True,
        env=env,
        cwd=place,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


REFUSED = {
    "owner/pickles": "holds its weights in pickles only (pytorch_model.bin), which can run code",
    "owner/absent": "could not read hf:owner/absent: ",
    "owner/text": "has no config.json: it is no model of cdcd",
    "owner/large": "has a model.safetensors of 1,000,000,000,000 bytes, at most",
    "owner/cut": "is damaged or another file: model.safetensors (500 bytes)",
    "owner/newer": "was written by cdcd 9.1.0 in format 99; this is cdcd",
    "owner": "is not of the form hf:OWNER/NAME",
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Answers of all commands, and what the hub holds and has sent."""
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    place = tmp_path_factory.mktemp("hub")
    train_tiny(place / "run", {"data.layout": "stream", "training.checkpoint_every": 0})
    sample = ["--num-steps", 2, "--seed", 5, "--ignore-eos"]
    with fake_hub() as server:
        first = [["push", "run", "hf:owner/good"], ["export", "run", "--out", "here"]]
        pushed, _ = run_commands(place, server.url, first)
        good = dict(server.repositories["owner/good"])
        make_bad(server, good)
        server.fetched.clear()
        commands = [["sample", "hf:owner/good", *sample], ["sample", "here", *sample]]
        commands += [["sample", f"hf:{name}"] for name in REFUSED]
        answers = run_commands(place, server.url, commands)
        fetched = list(server.fetched)
    offline = [["sample", f"hf:owner/{name}", *sample] for name in ("good", "other")]
    return {
        "pushed": pushed,
        "good": good,
        "answers": answers,
        "fetched": fetched,
        "offline": run_commands(place, server.url, offline),
    }


def make_bad(server, good):
    """Adds repositories that must be refused."""
    server.repositories |= {
        "owner/pickles": {"config.json": b"{}", "pytorch_model.bin": b"\x80\x04."},
        "owner/text": {"README.md": b"nothing", "model.safetensors": b""},
        "owner/large": dict(good),
        "owner/cut": good | {"model.safetensors": good["model.safetensors"][:500]},
    }
    newer = json.loads(good["config.json"]) | {"format": 99, "cdcd_version": "9.1.0"}
    server.repositories["owner/newer"] = good | {"config.json": json.dumps(newer).encode()}
    server.claims = {"owner/large": {"model.safetensors": LARGE}}


def test_a_pushed_model_has_its_card_and_no_more(hub):
    code, out, err = hub["pushed"]
    assert (code, out.strip().rsplit("/", 2)[1:]) == (0, ["owner", "good"]), err
    names = {"README.md", "config.json", "model.safetensors", "tokenizer/words.json"}
    assert set(hub["good"]) == names
    assert hub["good"]["README.md"].decode().startswith('---\nlicense: "unknown"\n')


def test_a_model_of_the_hub_samples_as_the_one_here(hub):
    (code, out, err), (_, ours, _) = hub["answers"][:2]
    assert code == 0, err
    assert out == ours
    assert len(out.split()) > 5


@pytest.mark.parametrize("name", REFUSED)
def test_refused(hub, name):
    code, out, err = hub["answers"][2 + list(REFUSED).index(name)]
    assert (code, out) == (2, "")
    assert err.count("\n") == 1, err
    assert REFUSED[name] in err


def test_only_what_is_safe_is_downloaded(hub):
    assert "pytorch_model.bin" not in hub["fetched"]
    # The good one and the one that is cut short, not the one that is too large.
    assert hub["fetched"].count("model.safetensors") == 2


def test_without_a_network_the_cache_is_used(hub):
    (code, out, err), (refused, _, problem) = hub["offline"]
    assert (code, out) == (0, hub["answers"][0][1])
    assert "the hub cannot be reached: hf:owner/good is taken from the cache" in err
    assert refused == 2
    assert "the hub cannot be reached and hf:owner/other is not in the local cache" in problem
    assert problem.count("\n") == 1
