# ruff: noqa: E501  (messages are as long as they are)
"""Logs with more than one failure: what began it, what ended it, and whose it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from legroom.messages import diagnose_text

JOB = "/job:localhost/replica:0/task:0/device:"
GIB = 2**30


def oom(batch: int, gpu: int = 0, op: str = "model/conv2d/Conv2D") -> str:
    return (
        f"OOM when allocating tensor with shape[{batch},64,64,32] and type float on {JOB}GPU:{gpu} "
        f"by allocator GPU_{gpu}_bfc\n\t [[{{{{node {op}}}}}]]\n"
    )


def size(batch: int) -> int:
    return batch * 64 * 64 * 32 * 4


def bfc(batch: int, gpu: int = 0, in_use: int = 0, op: str = "model/conv2d/Conv2D") -> str:
    """The allocator's log of one failure, the op's line and the exception."""
    size_ = size(batch)
    return (
        f"W tensorflow/core/common_runtime/bfc_allocator.cc:479] Allocator (GPU_{gpu}_bfc) ran out "
        f"of memory trying to allocate {size_ / 2**20:.2f}MiB (rounded to {size_})requested by op {op}\n"
        "Current allocation summary follows.\n"
        f"I tensorflow/core/common_runtime/bfc_allocator.cc:1027] BFCAllocator dump for GPU_{gpu}_bfc\n"
        "I tensorflow/core/common_runtime/bfc_allocator.cc:1101] Stats: \n"
        f"Limit:                 {16 * GIB}\nInUse:                 {in_use}\n"
        f"MaxInUse:              {in_use}\nNumAllocs:                  82\n"
        "MaxAllocSize:           3656908800\n\n"
        f"W tensorflow/core/common_runtime/bfc_allocator.cc:491] {'*' * 60}{'_' * 40}\n"
        "W tensorflow/core/framework/op_kernel.cc:1818] OP_REQUIRES failed at conv_ops.cc:1 : "
        f"RESOURCE_EXHAUSTED: {oom(batch, gpu, op)}"
        f"tensorflow.python.framework.errors_impl.ResourceExhaustedError: {oom(batch, gpu, op)}"
    )


def test_one_failure_told_many_times_is_one() -> None:
    diagnosis = diagnose_text(bfc(64, in_use=15 * GIB))
    assert diagnosis.failures == 1
    assert diagnosis.final_error is None
    assert (diagnosis.limit_bytes, diagnosis.in_use_bytes) == (16 * GIB, 15 * GIB)
    assert diagnosis.shape == (64, 64, 64, 32)
    assert diagnosis.layer == "conv2d"


def test_two_replicas_name_the_first_and_both_devices() -> None:
    diagnosis = diagnose_text(bfc(64, gpu=1, in_use=15 * GIB) + bfc(64, gpu=0, in_use=14 * GIB))
    assert diagnosis.failures == 2
    assert diagnosis.device == "GPU:1"
    assert diagnosis.in_use_bytes == 15 * GIB
    assert "GPU:1, GPU:0" in diagnosis.story
    assert diagnosis.final_error is not None
    assert "GPU_0_bfc" in diagnosis.final_error


def test_root_errors_of_one_exception() -> None:
    text = f"2 root error(s) found.\n  (0) RESOURCE_EXHAUSTED: {oom(64)}  (1) RESOURCE_EXHAUSTED: {oom(64)}"
    diagnosis = diagnose_text(text)
    assert diagnosis.failures == 1
    assert diagnosis.op == "model/conv2d/Conv2D"


def test_a_retry_with_less_and_then_the_death() -> None:
    diagnosis = diagnose_text(bfc(64) + "retrying with 32\n" + bfc(32) + "Killed\n")
    assert diagnosis.failures == 2
    assert diagnosis.requested_bytes == size(64)
    assert diagnosis.final_error == "Killed"
    assert "2 times" in diagnosis.story
    assert "The last blow: the process was killed" in diagnosis.story


def test_the_same_failure_again_counts_again() -> None:
    diagnosis = diagnose_text(bfc(64) + "retrying\n" + bfc(64))
    assert diagnosis.failures == 2


def test_ops_that_fail_side_by_side_are_one_failure() -> None:
    """The executor runs ops in parallel: several are refused before the one exception is out."""
    logs, exceptions = zip(
        *(
            bfc(64, in_use=used * GIB, op=f"model/conv2d_{used}/Conv2D").split("tensorflow.python")
            for used in (12, 13, 14)
        ),
        strict=True,
    )
    diagnosis = diagnose_text("".join(logs) + "tensorflow.python" + exceptions[0] + "Killed\n")
    assert (diagnosis.failures, diagnosis.growth) == (1, None)
    assert diagnosis.layer == "conv2d_12"
    assert "2 more allocations failed beside it." in diagnosis.story
    assert diagnosis.final_error == "Killed"


def test_memory_that_is_not_given_back() -> None:
    text = "".join(bfc(64, in_use=used * GIB) for used in (12, 13, 14))
    diagnosis = diagnose_text(text)
    assert diagnosis.growth is True
    assert "not given back" in diagnosis.story
    assert any(remedy.code == "legroom.release()" for remedy in diagnosis.remedies)


def test_memory_that_is_given_back() -> None:
    assert diagnose_text(bfc(64, in_use=12 * GIB) + bfc(32, in_use=12 * GIB)).growth is False
    assert diagnose_text(bfc(64, in_use=12 * GIB)).growth is None
    # More was asked for the second time: no wonder that more was in use.
    assert diagnose_text(bfc(64, in_use=12 * GIB) + bfc(96, in_use=13 * GIB)).growth is False


def test_a_note_that_is_no_failure_does_not_hide_the_failure() -> None:
    note = (
        "W bfc_allocator.cc:246] Allocator (GPU_0_bfc) ran out of memory trying to allocate "
        "1.02GiB with freed_by_count=0. The caller indicates that this is not a failure, but may "
        "mean that there could be performance gains if more memory were available.\n"
    )
    diagnosis = diagnose_text(note * 3 + bfc(64))
    assert diagnosis.fatal
    assert diagnosis.requested_bytes == size(64)
    assert diagnosis.failures == 1
    quiet = diagnose_text(note * 3)
    assert (quiet.is_oom, quiet.fatal, quiet.failures) == (True, False, 0)


def test_a_thousand_notes_do_not_hide_the_first_failure() -> None:
    note = "bfc_allocator.cc:246] Allocator (GPU_0_bfc) ran out of memory trying to allocate {}MiB with freed_by_count=0. The caller indicates that this is not a failure\n"
    disk = "epoch\n" * 40_000 + "{} No space left on device\n"
    text = "".join(note.format(100 + number) for number in range(1000))
    text += (
        "".join(disk.format(number) for number in range(70)) + bfc(64) + note.format(1) + bfc(32)
    )
    diagnosis = diagnose_text(text)
    assert (diagnosis.requested_bytes, diagnosis.failures) == (size(64), 2)
    assert diagnosis.layer == "conv2d"


def test_a_pool_that_shrinks_until_it_fits_is_no_failure() -> None:
    line = "E cuda_driver.cc:806] failed to allocate {:.2f}G ({} bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
    sizes = [int(10 * GIB * 0.9**power) for power in range(5)]
    diagnosis = diagnose_text("".join(line.format(one / GIB, one) for one in sizes))
    assert (diagnosis.is_oom, diagnosis.fatal) == (True, False)
    assert "tried smaller ones" in diagnosis.story
    # With a failure behind it, the failure is what counts.
    worse = diagnose_text("".join(line.format(one / GIB, one) for one in sizes) + bfc(64))
    assert worse.fatal
    assert worse.requested_bytes == size(64)


def test_a_full_disk_beside_a_bare_error_of_that_name() -> None:
    text = (
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n"
        + "  File x\n" * 2000
        + "RESOURCE_EXHAUSTED: /tmp/cache_0.data; No space left on device\n\t [[{{node IteratorGetNext}}]]"
    )
    diagnosis = diagnose_text(text)
    assert (diagnosis.is_oom, diagnosis.where, diagnosis.op) == (False, "disk", None)


def test_a_cudnn_of_the_wrong_version_is_no_memory() -> None:
    text = (
        "E tensorflow/stream_executor/cuda/cuda_dnn.cc:319] Loaded runtime CuDNN library: 7.1.4 "
        "but source was compiled with: 7.6.5.\n"
        "UnknownError: Failed to get convolution algorithm. This is probably because cuDNN failed "
        "to initialize, so try looking to see if a warning log message was printed above.\n"
    )
    diagnosis = diagnose_text(text)
    assert (diagnosis.is_oom, diagnosis.finding) == (False, "cudnn-version-mismatch")


def test_interleaved_workers_keep_their_own_facts() -> None:
    """mpirun marks the lines of its processes; two dumps are written at the same time."""
    first = [f"[1,0]<stderr>:{line}" for line in bfc(64, gpu=0, in_use=15 * GIB).splitlines()]
    second = [
        f"[1,1]<stderr>:{line}"
        for line in bfc(48, gpu=1, in_use=11 * GIB, op="model/dense/MatMul").splitlines()
    ]
    mixed = "\n".join(line for pair in zip(first, second, strict=True) for line in pair)
    diagnosis = diagnose_text(mixed)
    assert diagnosis.failures == 2
    assert (diagnosis.device, diagnosis.requested_bytes) == ("GPU:0", size(64))
    assert (diagnosis.in_use_bytes, diagnosis.layer) == (15 * GIB, "conv2d")
    assert "GPU_1_bfc" in (diagnosis.final_error or "")


@pytest.mark.parametrize(
    "tag", ["[rank{}]: ", "(RayTrainWorker pid={}) ", "worker-{}  | ", "{}: ", "[1,{}]<stdout>:"]
)
def test_marks_of_workers(tag: str) -> None:
    text = "".join(
        tag.format(worker) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
        f"2.00 GiB. GPU {worker} has a total capacity of 14.56 GiB of which 1.00 GiB is free.\n"
        for worker in (2, 3)
    )
    diagnosis = diagnose_text(text)
    assert diagnosis.failures == 2
    assert diagnosis.device == "GPU:2"


def test_a_crash_after_a_failure_is_the_last_blow() -> None:
    diagnosis = diagnose_text(bfc(64) + "Segmentation fault (core dumped)\n")
    assert diagnosis.is_oom is True
    assert "crashed" in diagnosis.story


def test_the_kernels_lines_and_the_shells_are_one_death(oom: Path) -> None:
    text = (
        "[2059991.4] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0\n"
        "[2059991.4] memory: usage 8388608kB, limit 8388608kB, failcnt 141\n"
        "[2059991.5] oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=25315,uid=0\n"
        "[2059991.5] Memory cgroup out of memory: Killed process 25315 (python3) "
        "total-vm:53312244kB, anon-rss:8314560kB, file-rss:74816kB, shmem-rss:0kB\n"
        "Killed\n"
    )
    diagnosis = diagnose_text(text)
    assert diagnosis.final_error is None
    assert diagnosis.limit_bytes == 8 * GIB
    assert diagnosis.in_use_bytes == 8314560 * 1024
    assert "python3" in diagnosis.story
    assert diagnosis.framework == "system"


def test_many_failures_are_counted_and_the_first_and_last_kept() -> None:
    text = "".join(bfc(64 + index, op=f"model/conv2d_{index}/Conv2D") for index in range(200))
    diagnosis = diagnose_text(text)
    assert diagnosis.failures == 200
    assert diagnosis.requested_bytes == size(64)
    assert "conv2d_199" in (diagnosis.final_error or "")
