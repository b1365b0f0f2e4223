"""The parts of Keras that legroom builds on, and whether the Keras at hand has them.

A version that nobody has seen yet may lack one. Then what was built on it is left out, with a
sentence, and the training runs as Keras would: so this module imports nothing of Keras's own parts
until it is asked, and is asked before those modules are imported that do.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Sequence
from typing import Any

import keras

__all__ = ["PARTS", "Part", "missing"]


@dataclasses.dataclass(frozen=True)
class Part:
    """Something of Keras's own.

    Attributes:
        module: Where it is.
        name: What it is called there, with dots for what is inside of a class.
        takes: Parameters that it must have.
        knows: Names that its code must speak of, a class's in any of its methods: attributes that
            only exist once it ran.
    """

    module: str
    name: str
    takes: Sequence[str] = ()
    knows: Sequence[str] = ()

    def lacks(self) -> str | None:
        """What is not there, if something is not."""
        try:
            found: Any = importlib.import_module(f"keras.src.{self.module}")
            for name in self.name.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError):
            return f"{self.module}.{self.name}"
        found = inspect.unwrap(found)
        if self.takes and not set(self.takes) <= set(inspect.signature(found).parameters):
            return f"{self.module}.{self.name}({', '.join(self.takes)})"
        known = _names(found)
        unknown = next((name for name in self.knows if name not in known), None)
        return None if unknown is None else f"{self.module}.{self.name} with {unknown}"


def _names(found: Any) -> set[str]:
    """The names that the code of a function speaks of, or of a class and those above it."""
    if isinstance(found, type):
        inside = [value for kind in found.__mro__ for value in vars(kind).values()]
        return set().union(*(_names(inspect.unwrap(x)) for x in inside if not isinstance(x, type)))
    code = getattr(getattr(found, "fget", found), "__code__", None)
    return set() if code is None else set(code.co_names)


_TRAINER = "backend.tensorflow.trainer"
_OPTIMIZER = "optimizers.base_optimizer"
_SCALED = "optimizers.loss_scale_optimizer"

# By what they are for.
PARTS: dict[str, Sequence[Part]] = {
    "guard": (
        *(
            Part(_TRAINER, f"TensorFlowTrainer.make_{kind}_function", takes=("self", "force"),
                 knows=(f"{kind}_function",))
            for kind in ("train", "test", "predict")
        ),
        *(
            Part(_TRAINER, f"TensorFlowTrainer.{name}")
            for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch",
                         "predict_on_batch", "train_step", "test_step", "predict_step",
                         "distribute_strategy")
        ),
        Part("trainers.trainer", "Trainer.compile",
             knows=("optimizer", "run_eagerly", "jit_compile", "steps_per_execution")),
        Part(_OPTIMIZER, "BaseOptimizer.__init__",
             knows=("_trainable_variables", "_iterations", "clipnorm", "global_clipnorm",
                    "clipvalue", "loss_scale_factor", "use_ema", "gradient_accumulation_steps")),
        Part(_OPTIMIZER, "BaseOptimizer.build", knows=("_model_variables_moving_average",)),
        *(
            Part(_OPTIMIZER, f"BaseOptimizer.{name}")
            for name in ("_get_variable_index", "_var_key", "_backend_apply_gradients",
                         "_backend_update_step", "_clip_gradients", "_apply_weight_decay",
                         "_use_weight_decay", "update_step", "learning_rate", "iterations",
                         "variables")
        ),
        Part(_OPTIMIZER, "BaseOptimizer.apply", takes=("grads", "trainable_variables")),
        Part(_OPTIMIZER, "global_norm"),
        Part("backend.tensorflow.optimizer", "TFOptimizer.__init__",
             knows=("_distribution_strategy",)),
        Part(_SCALED, "LossScaleOptimizer.apply", takes=("grads", "trainable_variables")),
        Part(_SCALED, "LossScaleOptimizer.__init__", knows=("inner_optimizer",)),
        Part(_SCALED, "LossScaleOptimizer.build", knows=("step_counter", "dynamic_scale")),
        Part(_SCALED, "LossScaleOptimizer._stateful_handle_non_finite_grads"),
        Part("layers.layer", "Layer._flatten_layers", takes=("recursive", "include_self")),
        Part("layers.layer", "Layer.__init__", knows=("_losses",)),
        Part("backend", "Variable.assign"),
        Part("backend", "Variable", knows=("_value",)),
        Part("backend", "name_scope"),
        Part("backend.tensorflow", "numpy"),
        Part("backend.common", "global_state.get_global_attribute"),
        Part("backend.common.stateless_scope", "get_stateless_scope"),
        Part("backend.common.stateless_scope", "StatelessScope.add_update"),
        Part("random.seed_generator", "global_seed_generator"),
        Part("models.functional", "Functional"),
        Part("utils.tracking", "Tracker"),
    ),
    "slices": (
        Part("losses.loss", "reduce_weighted_values",
             takes=("values", "sample_weight", "mask", "reduction", "dtype")),
        Part("losses.loss", "apply_mask", takes=("sample_weight", "mask", "dtype", "reduction")),
        Part("losses.loss", "Loss.__call__"),
        Part("layers.layer", "Layer.add_loss", takes=("loss",)),
        Part(_SCALED, "LossScaleOptimizer.scale_loss", takes=("loss",)),
        Part("metrics.metric", "Metric.update_state"),
        Part("trainers.trainer", "Trainer.compile", knows=("_compile_loss",)),
        Part("trainers.compile_utils", "CompileLoss.metrics"),
    ),
    "resume": (
        Part(_TRAINER, "TensorFlowTrainer.fit", takes=("initial_epoch", "callbacks"),
             knows=("TFEpochIterator", "_initial_epoch")),
        Part(_TRAINER, "TFEpochIterator",
             knows=("_distributed_dataset", "data_adapter", "steps_per_epoch",
                    "steps_per_execution", "_num_batches", "_steps_seen")),
        Part(_TRAINER, "TFEpochIterator.enumerate_epoch"),
        Part("trainers.data_adapters.array_data_adapter", "ArrayDataAdapter"),
        Part("trainers.data_adapters.py_dataset_adapter", "PyDatasetAdapter.get_tf_dataset"),
        Part("trainers.data_adapters.tf_dataset_adapter", "TFDatasetAdapter.get_tf_dataset"),
    ),
}  # fmt: skip


@functools.cache
def missing(purpose: str) -> str | None:
    """What this Keras lacks for a purpose, as half a sentence; None where all is there.

    The first answer holds for the process: later, some of these parts are legroom's own.
    """
    lacking = next((lack for part in PARTS[purpose] if (lack := part.lacks()) is not None), None)
    return None if lacking is None else f"this Keras ({keras.__version__}) has no {lacking}"
