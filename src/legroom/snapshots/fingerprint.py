"""What a training is, in a few words that another process can compare with its own.

A snapshot is only right for the training it was taken of. Each part of the fingerprint is kept by
its name, so that a difference can be told.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["data_fingerprint", "differences", "training_fingerprint"]

# Arrays up to this size are read wholly: 4 GB/s. Of larger ones, so much in blocks all over them.
_READ = 2**28
_BLOCK = 2**16
_SIMPLE = ("batch_size", "epochs", "initial_epoch", "steps_per_epoch", "validation_steps",
           "validation_batch_size", "validation_freq", "validation_split", "shuffle",
           "class_weight")  # fmt: skip


def training_fingerprint(model: Any, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a training's fingerprint.

    Args:
        model: The compiled model.
        arguments: What `fit` was called with, by name.
    """
    parts = {
        "the model": _hashed(_config(model), [
            [tuple(variable.shape), str(variable.dtype)] for variable in model.weights
        ]),
        "the optimizer": _described_optimizer(getattr(model, "optimizer", None)),
        "the compile arguments": _hashed(_compiled(model)),
        "the callbacks": ", ".join(type(c).__name__ for c in _listed(arguments.get("callbacks"))),
    }  # fmt: skip
    for name in _SIMPLE:
        if name in arguments:
            parts[name] = repr(arguments[name])
    for name in ("x", "y", "sample_weight", "validation_data"):
        if arguments.get(name) is not None:
            parts[name] = data_fingerprint(arguments[name])
    return parts


def differences(kept: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs between two fingerprints, in words."""
    told = []
    for name in dict.fromkeys((*kept, *now)):
        before, after = kept.get(name), now.get(name)
        if before != after:
            if before is None or after is None or max(len(before), len(after)) > 60:
                told.append(f"{name} changed")
            else:
                told.append(f"{name} was {before} and is {after}")
    return told


def data_fingerprint(data: Any) -> str:
    """What data is: shapes, types and content of arrays; kind and length of others."""
    if isinstance(data, Mapping):
        return _joined(f"{key}: {data_fingerprint(data[key])}" for key in data)
    if isinstance(data, (list, tuple)) and not _is_numbers(data):
        return _joined(data_fingerprint(part) for part in data)
    if data is None:
        return "None"
    if hasattr(data, "detach") and data.nbytes > _READ and str(data.device) != "cpu":
        return f"{data.dtype}{list(data.shape)}"  # of a GPU, and too much to copy from there
    array = _as_array(data)
    if array is not None:
        return f"{array.dtype}{list(array.shape)} {_content(array):08x}"
    words = [type(data).__name__]
    if hasattr(data, "element_spec"):
        words.append(str(data.element_spec))
        cardinality = getattr(data, "cardinality", None)
        if callable(cardinality):
            words.append(str(int(cardinality())))
    elif hasattr(data, "num_batches"):
        words.append(str(data.num_batches))
    elif hasattr(data, "batch_sampler") and hasattr(data, "dataset"):
        words += _loader_words(data)
    elif inspect.isgenerator(data):
        words.append(data.__qualname__)
    return " ".join(words)


def _loader_words(loader: Any) -> list[str]:
    """What a loader of PyTorch's is: its data, and what its batches and their noise depend on."""
    words = [f"{name}={getattr(loader, name, None)}" for name in ("batch_size", "num_workers")]
    words.append(type(getattr(loader, "sampler", None)).__name__)
    dataset = loader.dataset
    words.append(type(dataset).__name__)
    if hasattr(dataset, "tensors"):
        words += [data_fingerprint(tensor) for tensor in dataset.tensors]
    elif hasattr(dataset, "__len__"):
        words.append(str(len(dataset)))
    return words


def _listed(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return list(getattr(callbacks, "callbacks", None) or (
        callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    ))  # fmt: skip


def _config(model: Any) -> Any:
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    try:
        return kind, _without_weights(model.get_config())
    except Exception:  # a subclassed model need not have one
        return kind


def _without_weights(config: Any) -> Any:
    """A configuration without modules of PyTorch's own, which hold their weights in it."""
    if isinstance(config, dict):
        own = config.get("class_name") == "TorchModuleWrapper"
        return {
            key: {k: v for k, v in value.items() if k != "module"}
            if own and key == "config" and isinstance(value, dict)
            else _without_weights(value)
            for key, value in config.items()
        }
    if isinstance(config, (list, tuple)):
        return [_without_weights(part) for part in config]
    return config


def _described_optimizer(optimizer: Any) -> str:
    if optimizer is None:
        return "none"
    try:
        return f"{type(optimizer).__name__} {_hashed(optimizer.get_config())}"
    except Exception:
        return type(optimizer).__name__


def _compiled(model: Any) -> Any:
    """The loss and metrics by name; a function by its code."""
    compiled = getattr(model, "_compile_loss", None)
    loss = getattr(compiled, "_user_loss", None)
    metrics = getattr(getattr(model, "_compile_metrics", None), "_user_metrics", None)
    return [loss, metrics, bool(getattr(model, "run_eagerly", False))]


def _hashed(*things: Any) -> str:
    text = json.dumps(things, sort_keys=True, default=_named, skipkeys=True)
    # Keras numbers the layers of a process: in a notebook the same model is dense_7 the next time.
    text = re.sub(r'_\d+(?=["/])', "", text)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _named(thing: Any) -> Any:
    """Something that is no JSON, told by what does not change from process to process."""
    code = getattr(thing, "__code__", None)
    if code is not None:
        constants = [repr(c) for c in code.co_consts if isinstance(c, (int, float, str))]
        return [thing.__qualname__, code.co_code.hex(), constants]
    if isinstance(thing, np.ndarray):
        return data_fingerprint(thing)
    if isinstance(thing, (set, frozenset)):
        return sorted(map(str, thing))
    config = getattr(thing, "get_config", None)
    if config is not None and not isinstance(thing, type):
        try:
            return [type(thing).__qualname__, json.loads(json.dumps(config(), default=_kind))]
        except Exception:
            return type(thing).__qualname__
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def _kind(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def _joined(parts: Any) -> str:
    return f"({'; '.join(parts)})"


def _is_numbers(data: Any) -> bool:
    return bool(data) and isinstance(data[0], (int, float))


def _as_array(data: Any) -> Any:
    """The array behind arrays, tensors, lists of numbers and tables; None for anything else."""
    if isinstance(data, (list, tuple)):
        return np.asarray(data)
    if isinstance(data, np.ndarray):
        return data
    if hasattr(data, "numpy") and hasattr(data, "shape"):
        if hasattr(data, "detach"):  # PyTorch's: of any device, and of types that NumPy has not
            data = data.detach().cpu()
            if str(data.dtype) == "torch.bfloat16":
                data = data.float()
        return np.asarray(data.numpy())
    if hasattr(data, "to_numpy"):
        return np.asarray(data.to_numpy())
    return None


def _content(array: Any) -> int:
    """A checksum of an array's content, or of many parts of it where it is very large."""
    if array.dtype.kind == "O":
        return zlib.crc32(repr(array.reshape(-1)[:: max(1, array.size // 4096)].tolist()).encode())
    if array.flags.c_contiguous:
        raw = memoryview(array.reshape(-1).view(np.uint8))
        if len(raw) <= _READ:
            return zlib.crc32(raw)
        number, step = 0, len(raw) * _BLOCK // _READ
        for start in range(0, len(raw), step):
            number = zlib.crc32(raw[start : start + _BLOCK], number)
        return zlib.crc32(raw[-_BLOCK:], number)
    if array.nbytes <= _READ:
        return zlib.crc32(np.ascontiguousarray(array).tobytes())
    rows = max(1, array.nbytes // _READ)
    return zlib.crc32(np.ascontiguousarray(array[::rows]).tobytes())
