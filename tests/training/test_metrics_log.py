"""metrics.jsonl is only a log: what is damaged in it is left out, and stops nothing."""

import pytest
from tiny import cdcd_main, metrics

from cdcd.files import FileWarning
from cdcd.training.checkpoint import RunDirectory
from cdcd.training.logging import read_metrics

DAMAGES = {
    "a flipped bit": lambda line: line.replace(b'"step"', b'"stex"'),
    "not UTF-8": lambda line: b"\xff" + line[1:],
    "zeros": lambda line: bytes(len(line)),
    "half a line": lambda line: line[: len(line) // 2],
    "a list": lambda line: b"[]",
    "a number": lambda line: b"3",
    "deep": lambda line: b"[" * 100_000,
    "a text for a number": lambda line: line.replace(b'"loss": ', b'"loss": "x", "was": '),
    "no whole step": lambda line: line.replace(b'"step": ', b'"step": 0.5, "was": '),
    "odd losses": lambda line: line.replace(b"{", b'{"losses": {"t": [1.0], "loss": []}, ', 1),
    "odd levels": lambda line: line.replace(b"{", b'{"validation": {"levels": [{}]}, ', 1),
    "no validation": lambda line: line.replace(b"{", b'{"validation": 3, ', 1),
}


def damage(file, names):
    """Damages the third line in some ways, each in a line of its own."""
    lines = file.read_bytes().split(b"\n")
    lines[2:3] = [DAMAGES[name](lines[2]) for name in names]
    file.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_line_is_left_out_with_a_warning(run, trained, name):
    file = run / "metrics.jsonl"
    damage(file, [name])
    with pytest.warns(FileWarning) as warnings:
        rows = read_metrics(file)
    assert [str(each.message) for each in warnings] == [f"{file}, line 3: damaged, and left out"]
    assert rows == [row for n, row in enumerate(read_metrics(trained / "metrics.jsonl")) if n != 2]


def test_no_command_stops_at_damaged_lines(run, trained, capsys):
    file = run / "metrics.jsonl"
    damage(file, DAMAGES)
    for command in (
        ("info", run),
        ("plot", run),
        ("train", "--resume", "--out", run, "--training.steps", 8),
    ):
        assert cdcd_main(*command) == 0
        others = f"(and {len(DAMAGES) - 1} others)"
        warning = f"cdcd: warning: {file}, line 3 {others}: damaged, and left out\n"
        assert capsys.readouterr().err == warning
    assert [row["step"] for row in metrics(run)] == [1, 2, 4, 5, 6, 6, 7, 8, 8]
    good = {str(row) for row in metrics(trained)}
    assert sum(str(row) in good for row in metrics(run)) == 6


def test_many_damaged_lines_are_one_warning(run):
    file = run / "metrics.jsonl"
    file.write_bytes(file.read_bytes() + b"\xff\n" * 1000)
    with pytest.warns(FileWarning, match=r"line 8 \(and 999 others\)") as warnings:
        rows = read_metrics(RunDirectory(run).metrics_path)
    assert (len(rows), len(warnings)) == (7, 1)


def test_a_good_log_is_read_without_warnings(run, recwarn):
    assert len(read_metrics(run / "metrics.jsonl")) == 7
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes()[:-9])
    assert len(read_metrics(run / "metrics.jsonl")) == 6
    assert not recwarn
