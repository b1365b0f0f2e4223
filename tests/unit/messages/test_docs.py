"""What the documentation shows is what legroom says, and every page it names is there."""

from __future__ import annotations

import io
import re
from pathlib import Path

from legroom.messages import diagnose_text
from legroom.messages.patterns import PATTERNS
from legroom.report import pages
from legroom.report.diagnosis import print_diagnosis

DOCS = Path(__file__).parents[3] / "docs"
PAGES = Path(pages.__file__).parent
LOG = """\
I bfc_allocator.cc:1046] Stats:
Limit:                      7600000000
InUse:                      7350000000
MaxInUse:                   7350000000
NumAllocs:                        8213
MaxAllocSize:                900000000

OOM when allocating tensor with shape[64,348,298,32] and type float on \
/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc
\t [[{{node model/conv2d_3/Conv2D}}]]
"""


def test_the_example_is_what_is_printed() -> None:
    stream = io.StringIO()
    print_diagnosis(diagnose_text(LOG), stream)
    page = (DOCS / "explain.md").read_text()
    assert f"```\n$ legroom explain train.log\n{stream.getvalue()}```" in page


def test_every_page_is_listed_and_is_of_use() -> None:
    listed = (DOCS / "explain.md").read_text()
    known = {pattern.finding for pattern in PATTERNS} | {"allocator-not-a-failure"}
    for page in PAGES.glob("[a-z]*.md"):  # the doctor's, LR101 …, have their own test
        assert f"findings/{page.name}" in listed
        assert page.stem in known
        text = page.read_text()
        assert text.startswith("# ")
        assert "**What it means.**" in text


def test_wordings_on_the_pages_are_recognised() -> None:
    """Someone pastes the message of a page into ``legroom explain``: it leads to that page."""
    for page in PAGES.glob("[a-z]*.md"):
        block = re.search(r"```\n(.*?)```", page.read_text(), re.S)
        if block is None:
            continue
        found = diagnose_text(block.group(1))
        assert found.finding == page.stem
