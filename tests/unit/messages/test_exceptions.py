# ruff: noqa: E501  (messages are as long as they are)
"""Exceptions with their causes, of frameworks that are not installed here."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from legroom.core.errors import OutOfMemoryError
from legroom.messages import diagnose_exception, explain, translate
from legroom.messages.exceptions import FOREIGN, chain, chain_text, framework_of

JOB = "/job:localhost/replica:0/task:0/device:GPU:0"
OOM = f"OOM when allocating tensor with shape[8,32,32,16] and type float on {JOB} by allocator GPU_0_bfc"


def foreign(name: str, module: str, base: type[BaseException] = Exception) -> type[Any]:
    return type(name, (base,), {"__module__": module})


OpError = foreign("OpError", "tensorflow.python.framework.errors_impl")
ResourceExhaustedError = foreign("ResourceExhaustedError", OpError.__module__, OpError)
TorchOutOfMemory = foreign("OutOfMemoryError", "torch", RuntimeError)
ArrayMemoryError = foreign("_ArrayMemoryError", "numpy._core._exceptions", MemoryError)
JaxRuntimeError = foreign("JaxRuntimeError", "jax.errors", RuntimeError)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_tensorflow_error() -> None:
    diagnosis = diagnose_exception(raised(ResourceExhaustedError(f"{OOM} [Op:Conv2D]")))
    assert (diagnosis.is_oom, diagnosis.fatal, diagnosis.framework) == (True, True, "tensorflow")
    assert (diagnosis.shape, diagnosis.op) == ((8, 32, 32, 16), "Conv2D")
    assert diagnosis.failures == 1


def test_types_that_say_it_by_themselves() -> None:
    for error, framework in (
        (ResourceExhaustedError(""), "tensorflow"), (TorchOutOfMemory(""), "torch"),
        (MemoryError(), "system"),
    ):  # fmt: skip
        diagnosis = diagnose_exception(error)
        assert (diagnosis.is_oom, diagnosis.framework) == (True, framework)


def test_a_subclass_of_a_known_type() -> None:
    mine = foreign("MyError", "mylib", ResourceExhaustedError)
    diagnosis = diagnose_exception(mine("it failed"))
    assert (diagnosis.is_oom, diagnosis.framework) == (True, "tensorflow")
    assert diagnose_exception(foreign("Full", "mylib", MemoryError)("full")).is_oom


def test_the_message_is_right_where_the_type_is_not() -> None:
    diagnosis = diagnose_exception(ResourceExhaustedError("/tmp/x; No space left on device"))
    assert (diagnosis.is_oom, diagnosis.where) == (False, "disk")
    assert diagnose_exception(ValueError("shapes (3,) and (4,) do not match")).is_oom is False
    assert diagnose_exception(KeyError("loss")).is_oom is False


def test_numpy_and_the_system() -> None:
    text = (
        "Unable to allocate 201. GiB for an array with shape (2999, 2999, 2999) and data type int64"
    )
    diagnosis = diagnose_exception(ArrayMemoryError(text))
    assert (diagnosis.framework, diagnosis.requested_bytes) == ("numpy", 2999**3 * 8)
    full = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    assert (diagnose_exception(full).is_oom, diagnose_exception(full).where) == (True, "host")
    assert diagnose_exception(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))).where == "disk"
    assert diagnose_exception(subprocess.CalledProcessError(-9, "python train.py")).is_oom
    assert diagnose_exception(subprocess.CalledProcessError(137, "python train.py")).is_oom
    assert diagnose_exception(subprocess.CalledProcessError(1, "python train.py")).is_oom is False


def test_a_real_one_of_numpy_if_it_is_here() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(MemoryError) as caught:
        numpy.empty((2**30, 2**17))
    diagnosis = diagnose_exception(caught.value)
    assert (diagnosis.framework, diagnosis.shape) == ("numpy", (2**30, 2**17))
    assert (diagnosis.requested_bytes, diagnosis.dtype) == (2**50, "float64")


def test_causes_are_read_and_told_once() -> None:
    try:
        try:
            raise TorchOutOfMemory(
                "CUDA out of memory. Tried to allocate 1.53 GiB. GPU 0 has a total capacity of "
                "14.56 GiB of which 155.81 MiB is free."
            )
        except RuntimeError as error:
            raise ValueError("training failed") from error
    except ValueError as error:
        diagnosis = diagnose_exception(error)
    assert (diagnosis.is_oom, diagnosis.framework, diagnosis.device) == (True, "torch", "GPU:0")
    assert diagnosis.failures == 1


def test_a_context_counts_and_a_suppressed_one_does_not() -> None:
    def fail(suppress: bool) -> BaseException:
        try:
            try:
                raise ResourceExhaustedError(OOM)
            except OpError:
                if suppress:
                    raise KeyError("x") from None
                raise KeyError("x")  # noqa: B904
        except KeyError as error:
            return error

    assert diagnose_exception(fail(suppress=False)).is_oom
    assert diagnose_exception(fail(suppress=True)).is_oom is False


def test_groups_notes_and_circles() -> None:
    error = ValueError("x")
    other = KeyError("y")
    error.__cause__, other.__cause__ = other, error
    assert len(list(chain(error))) == 2
    error.__notes__ = ["while: " + OOM]  # type: ignore[attr-defined]
    assert diagnose_exception(error).is_oom
    group = foreign("ExceptionGroup", "builtins")("several")
    group.exceptions = (ValueError("a"), ResourceExhaustedError(OOM))
    assert diagnose_exception(group).shape == (8, 32, 32, 16)


def test_the_node_of_the_exception_itself() -> None:
    error = ResourceExhaustedError(OOM)
    error.node_def = type("NodeDef", (), {"name": "model/conv2d/Conv2D"})()
    assert diagnose_exception(error).layer == "conv2d"


def test_an_exception_that_can_not_be_printed() -> None:
    class Bad(Exception):
        node_def = property(lambda self: 1 / 0)

        def __str__(self) -> str:
            raise RuntimeError("no")

    assert diagnose_exception(Bad()).is_oom is False
    Bad.__name__ = Bad.__qualname__ = "ResourceExhaustedError"
    assert diagnose_exception(Bad()).is_oom


def test_a_message_of_megabytes() -> None:
    error = ResourceExhaustedError("x" * 5_000_000 + OOM)
    assert diagnose_exception(error).shape == (8, 32, 32, 16)
    assert len(chain_text(error)) < 400_000


def test_translation_into_an_error_of_ours() -> None:
    ours = translate(ResourceExhaustedError(OOM))
    assert isinstance(ours, OutOfMemoryError)
    assert "8 × 32 × 32 × 16 × 4 B" in str(ours)
    assert translate(ValueError("x")) is None
    assert translate(ResourceExhaustedError("No space left on device")) is None


def test_frameworks_by_module() -> None:
    assert framework_of(ResourceExhaustedError("")) == "tensorflow"
    assert framework_of(foreign("XlaRuntimeError", "jaxlib.xla_extension")("")) == "jax"
    assert framework_of(ValueError()) is None
    assert set(FOREIGN) == {"tensorflow", "jax", "torch", "numpy", "system"}


def test_explain_takes_exceptions_texts_and_paths(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(OOM)
    for subject in (ResourceExhaustedError(OOM), OOM, OOM.encode(), bytearray(OOM, "ascii"), path):
        assert explain(subject).shape == (8, 32, 32, 16)
    with pytest.raises(TypeError, match="Received: int"):
        explain(3)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No such file"):
        explain(tmp_path / "none.log")
