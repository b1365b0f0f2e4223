# ruff: noqa: E501  (messages are as long as they are)
"""The words: arithmetic, axes, what was there, and what to do, ranked."""

from __future__ import annotations

from pathlib import Path

import pytest

from legroom.messages import diagnose_text
from legroom.messages.arithmetic import axes, product

LOGS = Path(__file__).parents[2] / "fixtures" / "oom" / "logs"
JOB = "/job:localhost/replica:0/task:0/device:GPU:0"


def oom(shape: str, node: str = "model/conv2d/Conv2D", dtype: str = "float") -> str:
    return (
        f"OOM when allocating tensor with shape[{shape}] and type {dtype} on {JOB} by allocator "
        f"GPU_0_bfc\n\t [[{{{{node {node}}}}}]]"
    )


def test_the_arithmetic() -> None:
    assert product((64, 348, 298, 32), "float32") == "64 × 348 × 298 × 32 × 4 B = 850 MB"
    assert product((), "float64") == "8 B = 8 B"
    assert product((5,), "string") is None
    assert "64 × 348 × 298 × 32 × 4 B = 850 MB" in diagnose_text(oom("64,348,298,32")).story


@pytest.mark.parametrize(
    ("shape", "layout", "names"),
    [
        ((64, 348, 298, 32), None, "batch height width channels"),
        ((64, 224, 224, 64), None, "batch height width channels"),
        ((128, 256, 28, 28), None, "batch channels height width"),
        ((128, 128, 109, 109), "NHWC", "batch channels height width"),
        ((64, 100, 200, 30), "NHWC", "batch height width channels"),
        ((64, 100, 200, 30), "NCHW", "batch channels height width"),
        ((3, 3, 512, 1024), None, "kernel kernel channels in filters"),
        ((1024, 1024, 1024, 1024), None, None), ((64, 100, 200, 30), None, None),
        ((64, 512), None, None), ((7,), None, None), ((), None, None),
    ],
)  # fmt: skip
def test_axes(shape: tuple[int, ...], layout: str | None, names: str | None) -> None:
    found = axes(shape, layout)
    assert (" ".join(found) if found else None) == names


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("model/conv2d/Conv2D", "Conv2D of layer conv2d asked"),
        ("gradient_tape/model/conv2d/Conv2D/Conv2DBackpropInput", "in the backward pass"),
        ("adam/Mul_3", "in the optimizer's update"),
        ("compile_loss/mse/sub", "in the loss"),
        ("IteratorGetNext", "in the input pipeline"),
    ],
)
def test_who_asked(node: str, words: str) -> None:
    assert words in diagnose_text(oom("64,348,298,32", node)).story


def test_what_was_in_use_and_what_is_missing() -> None:
    text = (
        "Stats: \nLimit:     10625279591\nInUse:      7350513920\nMaxInUse:   7464792320\n"
        "NumAllocs:   82\nMaxAllocSize:           3656908800\n" + oom("16,1,892800,8,4,2,2")
    )
    diagnosis = diagnose_text(text)
    assert "7.35 GB of 10.6 GB was in use: 4.04 GB too little was left." in diagnosis.story
    assert diagnosis.fragmented is False


def test_more_than_there_is() -> None:
    text = (
        oom("1024,1024,1024,64")
        + "\nStats: \nLimit:    16000000000\nInUse:       5000000\nMaxAllocSize:   1\n"
    )
    assert "could never fit" in diagnose_text(text).story


def test_what_the_rest_held() -> None:
    story = diagnose_text((LOGS / "tf221_bfc_dump.txt").read_bytes()).story
    assert "The largest tensors in use were 1 × 69.2 MB, 1 × 67.1 MB, 1 × 65.0 MB." in story
    assert "83.7 MB was free, but the largest piece was 54.5 MB: the memory is fragmented." in story


def test_the_same_size_is_pointed_out() -> None:
    text = (
        "bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran out of memory trying to allocate 100.00MiB "
        "(rounded to 104857600)requested by op a/b/Mul\n"
        "bfc_allocator.cc:2] 7 Chunks of size 104857600 totalling 700.00MiB\n"
        "bfc_allocator.cc:2] 2 Chunks of size 256 totalling 512B\n"
        "bfc_allocator.cc:3] Sum Total of in-use chunks: 700.00MiB\n"
    )
    assert "7 of them as large as the one asked for" in diagnose_text(text).story


def test_ops_that_hold_memory() -> None:
    text = (
        "bfc_allocator.cc:1] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00MiB\n"
        "bfc_allocator.cc:2] InUse at b0dc89400 of size 5000000 by op a/b/Conv2D action_count 9 step 0 next 1\n"
        "bfc_allocator.cc:2] InUse at b0dc89600 of size 2000000 by op a/c/Mul action_count 9 step 0 next 2\n"
        "bfc_allocator.cc:2] InUse at b0dc89800 of size 4000000 by op a/b/Conv2D action_count 9 step 0 next 3\n"
    )
    assert "Most was held by the ops Conv2D 9.00 MB, Mul 2.00 MB." in diagnose_text(text).story


def test_buffers_of_a_program() -> None:
    text = (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
        "allocate 4770354232 bytes.\nBufferAssignment OOM Debugging.\nPeak buffers:\n"
        '\tBuffer 1:\n\t\tSize: 1.00GiB\n\t\tOperator: op_name="jit(f)/jit(main)/enc/mlp/dot_general"'
        ' source_file="x.py" source_line=1\n\t\tXLA Label: fusion\n\t\tShape: f32[1024,512,512]\n'
        "\t\t==========================\n\n\tBuffer 2:\n\t\tSize: 384.0MiB\n"
        "\t\tEntry Parameter Subshape: f32[256,128,3]\n\t\t==========================\n"
    )
    diagnosis = diagnose_text(text)
    assert (
        "Its largest buffers at the peak: 1.07 GB for mlp/dot_general and 403 MB."
        in diagnosis.story
    )


def test_a_message_that_contradicts_itself() -> None:
    text = (
        "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total "
        "capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)"
    )
    diagnosis = diagnose_text(text)
    assert diagnosis.in_use_bytes is None
    assert "something else held it" in diagnosis.story
    assert diagnosis.remedies[0].command == "nvidia-smi"


def test_remedies_are_ranked_and_say_what_they_save() -> None:
    remedies = diagnose_text(oom("64,348,298,32")).remedies
    assert remedies[0].command == "legroom run train.py"
    assert remedies[0].exact
    assert remedies[0].bytes_saved == 849543168 // 2
    assert "slices of 32 instead of 64" in remedies[0].text
    assert [remedy.bytes_saved or 0 for remedy in remedies] == sorted(
        (remedy.bytes_saved or 0 for remedy in remedies), reverse=True
    )
    assert len(remedies) <= 5


def test_weights_are_not_cured_by_a_smaller_batch() -> None:
    remedies = diagnose_text(oom("3,3,512,1024", "Mul")).remedies
    assert not any(
        "slices" in remedy.text or "batch_size" in (remedy.code or "") for remedy in remedies
    )


def test_a_tensor_that_no_machine_could_hold() -> None:
    remedies = diagnose_text(oom("1048576,1048576", "Fill")).remedies
    assert "Look at the shape first" in remedies[0].text
    assert not any(
        "Look at" in remedy.text for remedy in diagnose_text(oom("64,348,298,32")).remedies
    )


def test_a_batch_of_one_can_not_be_halved() -> None:
    remedies = diagnose_text(oom("1,1080,1920,64")).remedies
    assert not any("batch_size" in (remedy.code or "") for remedy in remedies)


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("No space left on device", "df -h"),
        ("failed to allocate 8.41G (9029127168 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY", "nvidia-smi"),
        ("Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED", "nvidia-smi"),
        ("Killed", "legroom run train.py"), ("Segmentation fault", "legroom run train.py"),
    ],
)  # fmt: skip
def test_the_command_for_it(text: str, command: str) -> None:
    assert command in [remedy.command for remedy in diagnose_text(text).remedies]


def test_nothing_to_do_where_nothing_failed() -> None:
    assert diagnose_text("").remedies == ()
    note = (
        "ran out of memory trying to allocate 1.02GiB with freed_by_count=0. The caller indicates"
    )
    assert diagnose_text(note).remedies == ()
