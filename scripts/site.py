"""The sources of the documentation site: the documents of the repository, with links that work there.

    python scripts/site.py FOLDER

A document links to files by their paths. On the site a link to another page leads to that page, and any
other to the file at the address of the project. The reference has a page for each package.
"""

import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = {"From the paper to the code": "paper_to_code.md", "Results": "results.md"}
"""Sections of the README that have pages of their own."""
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    **{f"docs/{path.name}": path.name for path in sorted((ROOT / "docs").glob("*.md"))},
}
"""Documents and the pages that they become."""
REFERENCE = {
    "cdcd": ["inference.load", "inference.model", "inference.text_model", "inference.translator"],
    "cdcd.diffusion": ["diffusion"],
    "cdcd.metrics": ["metrics"],
    "cdcd.languages": ["languages"],
    "cdcd.data": ["data"],
    "cdcd.networks": ["networks"],
    "Settings": ["config", "presets"],
    "cdcd.training": ["training"],
    "cdcd.evaluation": ["evaluation"],
    "cdcd.serving": ["serving"],
}
"""Titles of the reference's pages, with the modules and packages that each shows."""
LINK = re.compile(r"(?P<before>\]\()(?P<path>(?!https?:|mailto:|#)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```$)", flags=re.DOTALL | re.MULTILINE)


def address() -> str:
    """Returns the address of the project."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["project"]["urls"]["Homepage"]


def moved(match: re.Match[str], document: str, folder: Path) -> str:
    """Returns a link of a document as it is on the site; a picture is copied to there."""
    path = os.path.normpath(Path(document).parent / match["path"])
    anchor = match["anchor"] or ""
    if not (ROOT / path).exists():
        raise ValueError(f"{document} links to {path}, which does not exist; correct the link")
    if path == "README.md":
        pages = {name.lower().replace(" ", "-"): page for name, page in SECTIONS.items()}
        return f"]({pages.get(anchor[1:]) or f'index.md{anchor}'})"
    if path in PAGES:
        return f"]({PAGES[path]}{anchor})"
    if path.endswith(".png"):
        picture = folder / "images" / Path(path).name
        picture.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, picture)
        return f"](images/{picture.name})"
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"]({address()}/{kind}/main/{path}{anchor})"


def page(text: str, document: str, folder: Path) -> str:
    """Returns the text of a document with the links of a page; code stays as it is."""
    parts = FENCE.split(text)
    parts[::2] = (LINK.sub(lambda match: moved(match, document, folder), p) for p in parts[::2])
    return "".join(parts)


def split_readme(text: str) -> dict[str, str]:
    """Returns the README as the home page and the sections that have pages of their own."""
    pages = {}
    for title, name in SECTIONS.items():
        section = re.search(rf"^## {title}\n.*?(?=^## )", text, flags=re.DOTALL | re.MULTILINE)
        assert section is not None, f"the README has no section {title}"
        text = text.replace(section[0], "")
        pages[name] = section[0].removeprefix("#")
    return {"index.md": text, **pages}


def modules_of(name: str) -> list[str]:
    """Returns a module, or the modules of a package and of those in it, as dotted names."""
    path = ROOT / "src" / "cdcd" / name.replace(".", "/")
    if not path.is_dir():
        return [f"cdcd.{name}"]
    files = (file.relative_to(ROOT / "src") for file in sorted(path.rglob("*.py")))
    names = (".".join(file.with_suffix("").parts) for file in files)
    return [name for name in names if not name.endswith("__init__")]


def reference(title: str, names: list[str]) -> str:
    """Returns a page of the reference."""
    modules = [module for name in names for module in modules_of(name)]
    return f"# {title}\n\n" + "\n".join(f"::: {module}\n" for module in modules)


def write_sources(folder: Path) -> None:
    """Writes the pages of the site into a folder, which is emptied before."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "api").mkdir(parents=True)
    for document, name in PAGES.items():
        text = (ROOT / document).read_text(encoding="utf-8")
        pages = split_readme(text) if document == "README.md" else {name: text}
        for each, content in pages.items():
            (folder / each).write_text(page(content, document, folder), encoding="utf-8")
    for title, names in REFERENCE.items():
        name = f"{title.removeprefix('cdcd.').lower()}.md"
        (folder / "api" / name).write_text(reference(title, names), encoding="utf-8")


if __name__ == "__main__":
    write_sources(Path(sys.argv[1]))
