"""Commands in the documents are commands: every option is known, and the Slurm script starts torchrun."""

import re
import shlex
import subprocess
from itertools import pairwise

import pytest
from paths import ROOT

from cdcd.cli.errors import UsageError
from cdcd.cli.verbs import build_parser

DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```(?:bash|sh)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?:^|-m |\| )cdcd ([^|>#\n]*)", flags=re.MULTILINE)


def blocks_of(path):
    return BLOCK.findall(path.read_text(encoding="utf-8"))


def commands_of(text):
    """Returns the commands of cdcd in a block, in words."""
    found = COMMAND.findall(text.replace("\\\n", " "))
    return [shlex.split(command, comments=True) for command in found]


def test_commands_are_found():
    text = "echo x | cdcd translate RUN --source -\ntorchrun -m cdcd train \\\n  --out RUN  # y\n"
    assert commands_of(text) == [["translate", "RUN", "--source", "-"], ["train", "--out", "RUN"]]
    assert sum(len(commands_of(text)) for path in DOCUMENTS for text in blocks_of(path)) > 40


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_options_of_every_command_are_known(path):
    refused = []
    for command in (each for text in blocks_of(path) for each in commands_of(text)):
        try:
            build_parser(command).parse_args(command)
        except UsageError as error:
            refused.append(f"{shlex.join(command)}: {error}")
    assert refused == []


STANDINS = {
    "scontrol": 'echo "node1"; echo "node2"',
    "srun": 'exec "$@"',
    "torchrun": 'printf "%s\\n" torchrun "$CDCD_CACHE" "$@"',
    "cdcd": 'printf "%s\\n" cdcd "$@"',
}


def test_the_slurm_script_starts_torchrun_on_the_first_machine(tmp_path):
    [script] = [text for text in blocks_of(ROOT / "docs" / "scaling.md") if "#SBATCH" in text]
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    (tmp_path / "train.slurm").write_text(script)
    for name, text in STANDINS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "77", "SLURM_NNODES": "2"}
    done = subprocess.run(
        ["bash", "train.slurm"],
        cwd=tmp_path,
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "SLURM_GPUS_ON_NODE": "8",
            "TMPDIR": "/d",
            **slurm,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    fetching, _, training = done.stdout.partition("torchrun\n")
    assert fetching.split() == ["cdcd", "data", "verify", "s3://BUCKET/c4"]
    words = training.split()
    assert words[0] == "/d/cdcd"
    given = dict(pairwise(words))
    assert given["--nnodes"] == "2"
    assert given["--nproc-per-node"] == "8"
    assert given["--rdzv-endpoint"] == "node1:29500"
    assert given["--rdzv-id"] == "77"
    assert given["--data"] == "s3://BUCKET/c4"
    [command] = commands_of(" ".join(words))
    assert build_parser(command).parse_args(command).resume == "auto"
