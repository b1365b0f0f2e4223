"""Every example dies at 1 GiB under plain Python, and finishes there under ``legroom run``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from legroom.report.run import RunReport

from .side_by_side import CAP, CAP_FOR_PLAIN_PYTHON, legroom, python

EXAMPLES = Path(__file__).parents[2] / "examples"

# What each trains on in all, the loss it ends with when it has all the memory it wants, and how
# far from it a run may end. In slices BatchNorm sees less at once, and a GAN draws other noise.
EXPECTED = {
    "accumulation_by_hand": (2 * 192, 0.2153, 0.002),
    "batchnorm_in_a_loop": (3 * 192, 0.5553, 0.1),
    "embedding_lstm": (2 * 3072, 0.6918, 0.002),
    "gan_two_optimizers": (2 * 1280, 2.0495, 0.02),
    "handwritten_step": (2 * 2 * 512, 2.1139, 0.002),
    "large_batch_images": (2 * 64, 2.4532, 0.002),
    "tf_data_pipeline": (2 * 3 * 48, 0.5487, 0.002),
    "wide_tabular": (36_000, 0.6986, 0.002),
}


def test_every_example_is_tested() -> None:
    # Two have tests of their own: the pairs of test-versions have neither PyTorch nor JAX.
    names = {*EXPECTED, "pytorch_loop", "jax_images", "jax_loop"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == names
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}.py`" in listed for name in names)


@pytest.mark.parametrize("name", EXPECTED)
def test_it_dies_plainly_and_finishes_under_legroom(tmp_path: Path, name: str) -> None:
    script, written = str(EXAMPLES / f"{name}.py"), tmp_path / "report.json"
    assert "legroom" not in Path(script).read_text()
    plain = python(tmp_path / "plain", script, **CAP_FOR_PLAIN_PYTHON)
    guarded = legroom(
        tmp_path / "guarded", "run", "--memory", "1GiB", "--json", str(written), script
    )

    died = plain.wait()
    assert died.code == 1
    assert "ResourceExhaustedError" in died.errors
    assert "final loss" not in died.output

    finished = guarded.wait()
    assert finished.code == 0, finished.errors[-3000:]
    samples, loss, off = EXPECTED[name]
    (printed,) = re.findall(r"final loss: (\S+)", finished.output)
    assert float(printed) == pytest.approx(loss, rel=off)

    report = RunReport.from_json(written.read_text())
    assert (report.samples_seen, report.samples_lost) == (samples, 0)
    assert report.sliced
    assert report.budget_bytes == CAP
    assert report.peak_bytes is not None
    assert 0.1 * CAP < report.peak_bytes <= CAP
    assert report.slice_size is not None
    assert report.batch_size is not None
    assert 1 <= report.slice_size < report.batch_size
    assert len([event for event in report.events if event.name == "oom"]) == report.ooms
    warned = "BatchNorm" in finished.errors or "batch_normalization" in finished.errors
    assert warned == (name == "batchnorm_in_a_loop")
    assert "out of memory" in finished.errors.splitlines()[-5]  # the closing table
