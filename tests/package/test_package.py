"""The package as it would be published: small, complete, and described with links that work elsewhere."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes

import pytest
from paths import ROOT

MOST_BYTES = 1_000_000
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HOME = PROJECT["urls"]["Homepage"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the source archive, and of the wheel that is built from it."""
    for module in ("build", "hatchling", "hatch_fancy_pypi_readme"):
        pytest.importorskip(module, reason=f"{module} builds the package and is not installed")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    [path] = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel):
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def test_both_archives_are_small(built):
    sizes = {path.name: path.stat().st_size for path in built.iterdir()}
    assert len(sizes) == 2
    assert max(sizes.values()) < MOST_BYTES, sizes


def test_twine_accepts_both(built):
    pytest.importorskip("twine", reason="twine checks the package and is not installed")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_hold_every_file_of_the_package(built, wheel):
    files = (path for path in (ROOT / "src" / "cdcd").rglob("*") if path.is_file())
    expected = {str(path.relative_to(ROOT)) for path in files if path.suffix != ".pyc"}
    assert expected - {f"src/{name}" for name in wheel.namelist()} == set()
    assert "cdcd/py.typed" in wheel.namelist()
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        held = {name.partition("/")[2] for name in files.getnames()}
    assert expected - held == set()


def test_the_wheel_runs_by_itself(wheel, tmp_path):
    """From another folder, where nothing of the repository can take the place of a file that it lacks."""
    wheel.extractall(tmp_path)
    code = f"""
import cdcd
from cdcd.cli import main
assert cdcd.__file__.startswith({str(tmp_path)!r}), cdcd.__file__
assert main(["reproduce", "table1", "--scale", "tiny", "--list", "--out", "results"]) == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "table1" in done.stdout


def test_links_of_the_description_are_absolute_and_lead_to_files(metadata):
    description = metadata.get_payload()
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", description, flags=re.DOTALL))
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    files = {match[1] for link in links if (match := re.match(rf"{HOME}/blob/main/([^#]+)", link))}
    raw = HOME.replace("github.com", "raw.githubusercontent.com")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", description)
    assert pictures
    assert all(picture.startswith(f"{raw}/main/docs/images/") for picture in pictures)
    files |= {picture.removeprefix(f"{raw}/main/") for picture in pictures}
    assert len(files) > 10
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []


def test_the_description_is_the_readme_but_for_its_links(metadata):
    def without_links(text):
        return re.sub(r"\]\([^)\s]*\)", "]()", text)

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    raw = metadata.get_payload(decode=True).decode("utf-8")
    assert without_links(raw).strip() == without_links(readme).strip()
    blocks = re.findall(r"```.*?```", readme, flags=re.DOTALL)
    assert blocks == re.findall(r"```.*?```", raw, flags=re.DOTALL)


def test_the_project_has_one_address():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'repository-code: "{HOME}"' in citation
    assert PROJECT["urls"]["Repository"] == HOME
    assert PROJECT["urls"]["Issues"] == f"{HOME}/issues"


def test_the_workflow_tests_the_versions_that_the_package_names():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    [tested] = re.findall(r"python: \[(.*)\]", workflow)
    version = "Programming Language :: Python :: 3."
    named = [each for each in PROJECT["classifiers"] if each.startswith(version)]
    assert re.findall(r'"(3\.\d+)"', tested) == [each.rpartition(" ")[2] for each in named]
