"""The documentation site: every document has a page, links work there as in the repository."""

import importlib.util
import re
import subprocess
import sys
import tomllib

import pytest
from paths import ROOT

CONFIG = (ROOT / "zensical.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site():
    """The script that writes the sources of the site, as a module."""
    spec = importlib.util.spec_from_file_location("site_sources", ROOT / "scripts" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sources(site, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "sources"
    site.write_sources(folder)
    return folder


def test_links_lead_to_pages_or_to_the_project(site, tmp_path):
    home = site.address()
    text = """[a](../SECURITY.md#promised) [b](sampling.md) [c](../results/README.md#the-demo-tales)
[d](../README.md#results) [e](../README.md#limits) [f](https://arxiv.org) [g](#here) [h](../results)
![p](../benchmarks/results/gpu_scaling.png)
```
x[0](../SECURITY.md)
```
"""
    assert (
        site.page(text, "docs/log.md", tmp_path)
        == f"""[a](security.md#promised) [b](sampling.md) [c]({home}/blob/main/results/README.md#the-demo-tales)
[d](results.md) [e](index.md#limits) [f](https://arxiv.org) [g](#here) [h]({home}/tree/main/results)
![p](images/gpu_scaling.png)
```
x[0](../SECURITY.md)
```
"""
    )
    assert (tmp_path / "images" / "gpu_scaling.png").is_file()


def test_a_link_to_nothing_is_refused(site, tmp_path):
    with pytest.raises(ValueError, match=r"docs/log.md links to docs/absent.md"):
        site.page("[a](absent.md)", "docs/log.md", tmp_path)


def test_the_readme_is_cut_into_pages_and_nothing_is_lost(site):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = site.split_readme(readme)
    assert set(pages) == {"index.md", "paper_to_code.md", "results.md"}
    assert sum(len(text) for text in pages.values()) == len(readme) - len(site.SECTIONS)
    assert pages["results.md"].startswith("# Results\n")


def test_every_page_is_in_the_navigation(sources):
    written = {str(path.relative_to(sources)) for path in sources.rglob("*.md")}
    listed = re.findall(r'"([\w/]+\.md)"', CONFIG)
    assert sorted(listed) == sorted(written)


def test_the_reference_shows_modules_that_exist(sources):
    shown = [
        module
        for path in (sources / "api").glob("*.md")
        for module in re.findall(r"^::: ([\w.]+)$", path.read_text(), flags=re.MULTILINE)
    ]
    assert len(shown) == len(set(shown)) > 50
    paths = [ROOT / "src" / f"{module.replace('.', '/')}.py" for module in shown]
    assert [path for path in paths if not path.is_file()] == []


def test_the_project_has_one_address(site):
    assert tomllib.loads(CONFIG)["project"]["repo_url"] == site.address()


def test_the_site_builds_without_a_warning(sources):
    """In strict mode a link to a page or a heading that does not exist ends the build."""
    for module in ("zensical", "mkdocstrings"):
        pytest.importorskip(module, reason=f"{module} builds the site and is not installed")
    folder = sources.parent
    config = CONFIG.replace('"build/site"', '"sources"').replace('["src"]', f'["{ROOT}/src"]')
    (folder / "zensical.toml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    built = (folder / "site" / "api" / "diffusion" / "index.html").read_text(encoding="utf-8")
    assert 'id="cdcd.diffusion.objective.training_loss"' in built
