"""What the site is made of besides this folder."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = Path(__file__).parents[1] / "src/legroom/report/pages"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages on findings and errors, which are part of the package, below findings/."""
    for page in sorted(PAGES.glob("*.md")):
        name = f"findings/{page.name}"
        files.append(File.generated(config, name, abs_src_path=str(page)))
    return files
