"""The repository as a reader finds it: short files, links that lead somewhere, every folder of tests run."""

import re
import tomllib
from pathlib import Path

import pytest
from paths import ROOT

MOST_LINES = 400
SOURCES = sorted(
    path for name in ("src", "tests", "scripts") for path in (ROOT / name).rglob("*.py")
)
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "tests/**/*.md",
        "results/**/*.md",
        "benchmarks/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
WITHOUT_PUBLIC_TWIN = r"_foreach_|_standard_gamma\b"
"""Operations that torch offers under a private name alone."""
PRIVATE_TORCH = re.compile(rf"\btorch(?:\.\w+)*\.(?!{WITHOUT_PUBLIC_TWIN})_[a-z]\w+")
TIMED = re.compile(r"process_time\(|assert.*(perf_counter|elapsed)")


def lines_with(pattern: re.Pattern[str], folder: Path) -> list[str]:
    """Returns every line below a folder that a pattern is found in, with its file and number."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


# To be split; an entry goes as soon as its file is short.
LONG = {
    "tests/cli/test_translate_command.py",
    "tests/evaluation/test_evaluate.py",
    "tests/evaluation/test_judge.py",
    "tests/evaluation/test_translate_evaluation.py",
    "tests/inference/test_translator.py",
    "tests/networks/test_autoregressive.py",
    "tests/networks/test_translation.py",
    "tests/training/test_tasks.py",
}


def test_no_file_is_long():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in SOURCES
    }
    long = {name: count for name, count in lengths.items() if count > MOST_LINES}
    assert not set(long) - LONG, long


def test_the_source_uses_no_private_part_of_torch():
    found = lines_with(PRIVATE_TORCH, ROOT / "src")
    assert not found, "\n".join(found)


def test_no_test_asserts_a_time():
    """Counts work instead (helpers/work.py): a time depends on the machine."""
    found = lines_with(TIMED, ROOT / "tests")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_documents_lead_to_files(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    files = [link.split("#")[0] for link in links if not re.match(r"https?:|mailto:|#", link)]
    missing = [file for file in files if not (path.parent / file).exists()]
    assert not missing, missing


def test_every_folder_of_tests_is_run_and_explained():
    folders = sorted(
        {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("tests/*/test_*.py")}
    )
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    run = settings["tool"]["pytest"]["ini_options"]["testpaths"]
    assert sorted(run) == folders
    guide = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## .*`(\w+)/`", guide, flags=re.MULTILINE)
    assert [f"tests/{name}" for name in headings] == run


def test_the_guide_names_every_file_of_the_exact_tests():
    guide = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    names = [f"exact/{path.name}" for path in (ROOT / "tests" / "exact").glob("test_*.py")]
    assert [name for name in names if f"]({name})" not in guide] == []
