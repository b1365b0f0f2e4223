"""Minutes of fuzzing guided by coverage, and logs of hundreds of megabytes."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OOM = HERE.parents[1] / "fixtures" / "oom"

pytestmark = pytest.mark.long


def test_atheris(tmp_path: Path) -> None:
    pytest.importorskip("atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    texts = [path.read_bytes() for path in OOM.glob("*/*.txt")]
    texts += [one["text"].encode() for one in json.loads((OOM / "wordings.json").read_text())]
    for number, text in enumerate(texts):
        (corpus / str(number)).write_bytes(text)
    done = subprocess.run(
        [
            sys.executable, str(HERE / "fuzz_target.py"), "-max_total_time=120", "-timeout=20",
            "-rss_limit_mb=1024", "-max_len=16384", f"-artifact_prefix={tmp_path}/", str(corpus),
        ],
        capture_output=True, text=True, errors="replace", cwd=tmp_path, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_pipe_of_400_megabytes_in_little_memory() -> None:
    """Several logs one after the other, a line of 50 MB among them."""
    writer = textwrap.dedent(
        f"""
        import sys
        out = sys.stdout.buffer
        dump = open({str(OOM / "logs" / "tf221_bfc_dump.txt")!r}, "rb").read()
        bar = b"\\r 12/1563 \\x1b[32m======\\x1b[0m - loss: 0.123 memory: 3456 exit 0 killed 0"
        for part in range(5):
            for _ in range(1000):
                out.write(bar * 1000)
            out.write(b"\\n" + dump + b"x" * 10_000_000)
        out.write(b"y" * 50_000_000 + b"\\n" + dump + b"\\nKilled\\n")
        """
    )
    reader = textwrap.dedent(
        """
        import json, sys
        from legroom.messages import diagnose_stream
        diagnosis = diagnose_stream(sys.stdin.buffer)
        # Not ru_maxrss: what is started from a large process begins with that one's peak.
        peak = next(int(line.split()[1]) // 1024 for line in open("/proc/self/status")
                    if line.startswith("VmHWM"))
        print(json.dumps([diagnosis.failures, diagnosis.layer, diagnosis.final_error, peak]))
        """
    )
    source = subprocess.Popen([sys.executable, "-c", writer], stdout=subprocess.PIPE)
    done = subprocess.run(
        [sys.executable, "-c", reader], stdin=source.stdout, capture_output=True, timeout=600
    )
    assert source.wait(timeout=60) == 0
    failures, layer, blow, peak = json.loads(done.stdout)
    assert (failures, layer, blow) == (6, "conv2d_1_2", "Killed")
    assert peak < 200
