"""The target that atheris runs: bytes in, a diagnosis out, nothing else.

python fuzz_target.py -max_total_time=60 CORPUS
"""

from __future__ import annotations

import io
import sys

import atheris

with atheris.instrument_imports(include=["legroom"]):
    from legroom.messages import Diagnosis, diagnose_stream, diagnose_text


def one(data: bytes) -> None:
    """Diagnose, and look at what holds for every diagnosis."""
    for diagnosis in (diagnose_text(data), diagnose_stream(io.BytesIO(data), notebook=True)):
        assert Diagnosis.from_json(diagnosis.to_json()) == diagnosis
        assert all(line.isprintable() for line in diagnosis.story.split("\n"))
        for word in (diagnosis.op, diagnosis.layer, diagnosis.device, diagnosis.first_error):
            assert word is None or word.isprintable()


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
