"""The documentation: it builds without a warning, and the code in its guides runs."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import legroom

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# What a reader of a page has already stands in a comment at its top.
SETUP = re.compile(r"<!-- test:\n(.*?)-->", re.DOTALL)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
TRIED = [path for path in sorted(DOCS.rglob("*.md")) if SETUP.search(path.read_text())]
# Each framework in a process of its own.
OWN = {DOCS / "guides" / "pytorch.md": "torch", DOCS / "guides" / "jax.md": "jax"}


def test_the_site_builds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Train a Keras model like" in (tmp_path / "api/index.html").read_text()
    assert "Training loops of your own" in (tmp_path / "guides/custom-loops/index.html").read_text()


def test_pages_are_tried() -> None:
    names = {str(path.relative_to(DOCS)) for path in TRIED}
    assert {"index.md", "guides/custom-loops.md", "guides/input.md"} <= names


@pytest.mark.parametrize("framework", ["tensorflow", *OWN.values()])
def test_code_in_pages_runs(tmp_path: Path, framework: str) -> None:
    script = ["import runpy"]
    pages = [page for page in TRIED if OWN.get(page, "tensorflow") == framework]
    for number, page in enumerate(pages):
        text = page.read_text()
        parts = [*SETUP.findall(text), *BLOCK.findall(text)]
        assert len(parts) > 1, f"{page} has no code to try"
        name = f"{number}_{page.stem}.py"
        (tmp_path / name).write_text("\n".join(textwrap.dedent(part) for part in parts))
        script.append(f"runpy.run_path({name!r})")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(script)],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_public_name_is_in_the_reference() -> None:
    listed = re.findall(r"^::: legroom\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    hooks = {"__version__", "load_ipython_extension", "unload_ipython_extension"}
    assert sorted(listed) == sorted(set(legroom.__all__) - hooks)
