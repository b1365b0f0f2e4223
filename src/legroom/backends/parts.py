"""Everything of Keras's and TensorFlow's own that legroom replaces, or needs: the registry.

Whatever is not public, or is replaced, stands here: what it is, why, in which versions, and how it
is checked. Nothing else can be replaced (see `patches`). Parts are named by strings, so that
nothing is imported before it is asked for.

CONTRIBUTING.md has it as a table: `python -m legroom.backends.parts` prints that.
"""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["BRIEFLY", "CONTEXT", "DATASET", "FUNCTION", "FUNCTIONAL", "JAX_EPOCHS", "JAX_RANDOM",
           "JAX_TRAINER", "KNOWN", "LAYER", "LOSSES",
           "LOSS_SCALE_OPTIMIZER", "METRIC", "NEEDED", "ON_OBJECT", "OPTIMIZER", "PARTS",
           "REPLACED", "RESOURCE_VARIABLE", "RESOURCE_VARIABLES", "TORCH_AUTOGRAD", "TORCH_EPOCHS",
           "TORCH_LOSSES", "TORCH_MODULE", "TORCH_OPTIMIZER", "TORCH_SCALER", "TORCH_TRAINER",
           "TRAINER", "VARIABLE", "Part", "as_table"]  # fmt: skip

# The versions that legroom is tested with, the first and the last; see tests/versions/pairs.txt.
KNOWN = {
    "keras": ("3.5", "3.15"), "tensorflow": ("2.16", "2.21"), "torch": ("2.11", "2.13"),
    "jax": ("0.10", "0.10"),
}  # fmt: skip

NEEDED = "needed"
REPLACED = "replaced"  # until it is taken off
BRIEFLY = "replaced briefly"  # in one thread, while a context lasts
ON_OBJECT = "replaced on an object"


@dataclasses.dataclass(frozen=True)
class Part:
    """Something of another package's own.

    Attributes:
        purpose: The capability that is built on it.
        how: Whether it is needed as it is, or replaced, and for how long.
        owner: The module, with a colon before what is inside of it.
        names: The attributes of the owner; "*" stands for any letters. None: the owner itself.
        why: What it is for, in a sentence.
        takes: Parameters that it must have.
        knows: Names that its code must speak of, a class's in any of its methods: attributes that
            only exist once it ran.
        optional: Whether the capability does without it.
        since: The first version that has it, where that is not the first known one.
        until: The last one, likewise.
    """

    purpose: str
    how: str
    owner: str
    names: Sequence[str]
    why: str
    takes: Sequence[str] = ()
    knows: Sequence[str] = ()
    optional: bool = False
    since: str | None = None
    until: str | None = None

    @property
    def package(self) -> str:
        """The package that it belongs to."""
        return self.owner.partition(".")[0].partition(":")[0]

    @property
    def backend(self) -> str | None:
        """The backend that it is about; None where it is there on any of them."""
        inside = self.owner.removeprefix("keras.src.backend.").partition(".")[0].partition(":")[0]
        return inside if inside in ("tensorflow", "torch", "jax") else None

    @property
    def paths(self) -> list[str]:
        """Where it is, with dots."""
        owner = self.owner.replace(":", ".")
        return [f"{owner}.{name}" for name in self.names] or [owner]

    def lacks(self) -> str | None:
        """What is not there, if something is not."""
        for name, path in zip(self.names or ["*"], self.paths, strict=True):
            path = path.removeprefix("keras.src.")
            try:
                found = pkgutil.resolve_name(self.owner)
                found = inspect.unwrap(found if "*" in name else getattr(found, name))
            except (ImportError, AttributeError):
                return path
            if self.takes and not set(self.takes) <= set(inspect.signature(found).parameters):
                return f"{path}({', '.join(self.takes)})"
            known = _names(found)
            if unknown := [word for word in self.knows if word not in known]:
                return f"{path} with {unknown[0]}"
        return None

    def known_in(self, version: str) -> bool:
        """Whether a version of its package is expected to have it; a newer one is, too."""
        since, until = _numbers(self.since or "0"), _numbers(self.until or version)
        return since <= _numbers(version) <= until


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def _names(found: Any) -> set[str]:
    """The names that the code of a function speaks of, or of a class and those above it."""
    if isinstance(found, type):
        inside = [value for kind in found.__mro__ for value in vars(kind).values()]
        return set().union(*(_names(inspect.unwrap(x)) for x in inside if not isinstance(x, type)))
    code = getattr(getattr(found, "fget", found), "__code__", None)
    return set() if code is None else set(code.co_names)


# Where most of them are.
TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer"
TORCH_EPOCHS = "keras.src.backend.torch.trainer"
TORCH_TRAINER = f"{TORCH_EPOCHS}:TorchTrainer"
JAX_EPOCHS = "keras.src.backend.jax.trainer"
JAX_TRAINER = f"{JAX_EPOCHS}:JAXTrainer"
JAX_RANDOM = "keras.src.backend.jax.random"
OPTIMIZER = "keras.src.optimizers.base_optimizer:BaseOptimizer"
LOSS_SCALE_OPTIMIZER = "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer"
LAYER = "keras.src.layers.layer:Layer"
LOSSES = "keras.src.losses.loss"
METRIC = "keras.src.metrics.metric:Metric"
FUNCTIONAL = "keras.src.models.functional:Functional"
VARIABLE = "keras.src.backend:Variable"
FUNCTION = "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function"
RESOURCE_VARIABLES = "tensorflow.python.ops.resource_variable_ops"
RESOURCE_VARIABLE = f"{RESOURCE_VARIABLES}:BaseResourceVariable"
DATASET = "tensorflow:data.Dataset"
CONTEXT = "tensorflow.python.eager.context:Context"
TORCH_AUTOGRAD = "torch.autograd"
TORCH_LOSSES = "torch._C._nn"
TORCH_MODULE = "torch.nn:Module"
TORCH_OPTIMIZER = "torch.optim:Optimizer"
TORCH_SCALER = "torch.amp.grad_scaler:GradScaler"
_EPOCHS = "keras.src.backend.tensorflow.trainer:TFEpochIterator"
_ADAPTERS = "keras.src.trainers.data_adapters"
_STATELESS = "keras.src.backend.common.stateless_scope"
_OPS = "tensorflow.python.ops"
_FRAMEWORK = "tensorflow.python.framework"

PARTS: list[Part] = [
    # Every training: whole steps that happen wholly or not at all.
    *(
        Part("guard", REPLACED, TRAINER, (f"make_{kind}_function",),
             "hands Keras a guarded function instead of its own",
             takes=("self", "force"), knows=(f"{kind}_function",))
        for kind in ("train", "test", "predict")
    ),
    Part("guard", REPLACED, TRAINER, ("fit", "evaluate", "predict", "train_on_batch",
         "test_on_batch", "predict_on_batch"), "tells when a call begins and ends"),
    Part("guard", NEEDED, TRAINER,
         ("train_step", "test_step", "predict_step", "distribute_strategy"),
         "the steps, and the devices they run on"),
    Part("guard", NEEDED, "keras.src.trainers.trainer:Trainer", ("compile",),
         "how a model was compiled",
         knows=("optimizer", "run_eagerly", "jit_compile", "steps_per_execution")),
    Part("guard", REPLACED, OPTIMIZER, ("apply",),
         "gradients are caught on their way to the weights, in classes below it too",
         takes=("grads", "trainable_variables")),
    Part("guard", REPLACED, OPTIMIZER, ("apply_gradients",),
         "the same, in classes below it that have their own"),
    Part("guard", REPLACED, OPTIMIZER, ("build",),
         "slots that are made in a step that fails keep their first values",
         knows=("_model_variables_moving_average",)),
    Part("guard", ON_OBJECT, OPTIMIZER, ("assign", "assign_add", "assign_sub", "_var_key"),
         "writes wait until all new values are computed, or are made one by one"),
    Part("guard", NEEDED, OPTIMIZER, ("__init__",), "how an optimizer was set up",
         knows=("_trainable_variables", "_iterations", "clipnorm", "global_clipnorm", "clipvalue",
                "loss_scale_factor", "use_ema", "gradient_accumulation_steps")),
    Part("guard", NEEDED, OPTIMIZER,
         ("_get_variable_index", "_backend_apply_gradients", "_backend_update_step",
          "_clip_gradients", "_apply_weight_decay", "_use_weight_decay", "update_step",
          "learning_rate", "iterations", "variables"),
         "`apply` is made in units, so that little memory is needed at once"),
    Part("guard", NEEDED, OPTIMIZER, ("_learning_rate",), "the rate that a step may change",
         optional=True),
    Part("guard", NEEDED, "keras.src.optimizers.base_optimizer", ("global_norm",),
         "clips as Keras does"),
    Part("guard", NEEDED, "keras.src.backend.tensorflow.optimizer:TFOptimizer", ("__init__",),
         "tells Keras's own optimizers from others", knows=("_distribution_strategy",)),
    Part("guard", NEEDED, LOSS_SCALE_OPTIMIZER, ("apply",),
         "gradients of half precision are unscaled first",
         takes=("grads", "trainable_variables")),
    Part("guard", NEEDED, LOSS_SCALE_OPTIMIZER, ("__init__",), "the optimizer inside",
         knows=("inner_optimizer",)),
    Part("guard", NEEDED, LOSS_SCALE_OPTIMIZER, ("build",), "the scale is state of the step",
         knows=("step_counter", "dynamic_scale")),
    Part("guard", NEEDED, LOSS_SCALE_OPTIMIZER, ("_stateful_handle_non_finite_grads",),
         "gradients that overflow make no update"),
    Part("guard", NEEDED, LAYER, ("_flatten_layers",), "all layers of a model",
         takes=("recursive", "include_self")),
    Part("guard", NEEDED, LAYER, ("__init__",), "the losses that a layer adds",
         knows=("_losses",)),
    Part("guard", NEEDED, VARIABLE, ("assign",), "Keras's own variables"),
    Part("guard", NEEDED, VARIABLE, (), "TensorFlow's variable inside", knows=("_value",)),
    Part("guard", NEEDED, "keras.src.backend", ("name_scope",),
         "slots are named as Keras names them"),
    Part("guard", NEEDED, "keras.src.backend.common.global_state", ("get_global_attribute",),
         "what Keras keeps for the process is put back after a trace"),
    Part("guard", NEEDED, _STATELESS, ("get_stateless_scope",), "values that a scope shows"),
    Part("guard", NEEDED, f"{_STATELESS}:StatelessScope", ("add_update",),
         "new values are kept back in a scope"),
    Part("guard", NEEDED, "keras.src.random.seed_generator", ("global_seed_generator",),
         "the seed that layers without their own share"),
    Part("guard", NEEDED, FUNCTIONAL, (), "models whose layers run one after the other"),
    Part("guard", NEEDED, "keras.src.utils.tracking:Tracker", (),
         "a trace leaves models as they were"),
    Part("guard", REPLACED, FUNCTION, ("__call__",),
         "a hand-written step is guarded, and one in a step runs as Python"),
    Part("guard", NEEDED, FUNCTION, (), "how a function was made",
         knows=("_autograph", "_jit_compile")),
    Part("guard", REPLACED, RESOURCE_VARIABLE, ("assign*", "scatter_*"),
         "writes are noted, or left out, in classes below it too"),
    Part("guard", REPLACED, RESOURCE_VARIABLES, ("variable_accessed",),
         "whether slots and counts are read after `apply`", takes=("variable",)),
    Part("guard", NEEDED, RESOURCE_VARIABLES,
         ("BaseResourceVariable", "UninitializedVariable", "default_variable_creator_v2"),
         "variables that are made in a trace, without memory or outside of it"),
    Part("guard", NEEDED, f"{_OPS}.gen_resource_variable_ops",
         ("read_variable_op", "assign_variable_op"), "reads and writes past what is replaced"),
    Part("guard", NEEDED, f"{_OPS}.handle_data_util", ("copy_handle_data",),
         "a copied graph knows the shapes of variables"),
    Part("guard", NEEDED, f"{_OPS}.stateful_random_ops", ("global_generator",),
         "random state of TensorFlow's own"),
    Part("guard", NEEDED, f"{_FRAMEWORK}.auto_control_deps", ("op_is_stateful",),
         "which ops must keep their order"),
    Part("guard", NEEDED, f"{_FRAMEWORK}.auto_control_deps_utils",
         ("get_read_write_resource_inputs",), "which variables an op writes"),
    Part("guard", NEEDED, f"{_FRAMEWORK}.function_def_to_graph", ("function_def_to_graph",),
         "loops and calls inside of a graph are read"),
    Part("guard", NEEDED, f"{_FRAMEWORK}.ops", ("get_default_graph", "gradient_registry"),
         "a trace leaves nothing in TensorFlow's registry"),
    Part("guard", NEEDED, f"{_FRAMEWORK}.registry:Registry", (), "the same",
         knows=("_registry",)),
    Part("guard", NEEDED, f"{_FRAMEWORK}.ops:Graph", ("_get_function",),
         "functions inside of a graph are read"),
    Part("guard", NEEDED, f"{_FRAMEWORK}.ops:Graph", ("_variable_creator_stack",),
         "whether somebody else makes variables in a way of its own", optional=True),
    Part("guard", NEEDED, f"{_FRAMEWORK}.ops:Operation", ("_add_control_input",),
         "ops wait for others"),
    Part("guard", NEEDED, "tensorflow:Tensor", ("_handle_data", "_keras_mask"),
         "the shape of a variable; the mask that Keras puts on a tensor", optional=True),
    Part("guard", NEEDED, "tensorflow.python.trackable.data_structures:List", ("_storage",),
         "a trace leaves lists of models as they were", optional=True),
    Part("guard", NEEDED, "tensorflow.python.eager.record", ("VariableWatcher", "stop_recording"),
         "whether weights are read after `apply`; a run without gradients"),
    Part("guard", NEEDED, "tensorflow.python.eager.context",
         ("context", "global_seed", "FunctionCallOptions"), "the eager context"),
    Part("guard", NEEDED, CONTEXT, ("function_call_options",),
         "functions that run out of memory can run again"),
    Part("guard", NEEDED, CONTEXT, (), "whether memory was set up already",
         knows=("_context_handle",)),
    Part("guard", NEEDED, CONTEXT, ("_handle", "_rng"),
         "the limit of an allocator; the seeds of eager ops", optional=True),
    Part("guard", ON_OBJECT, CONTEXT, ("set_memory_growth",),
         "scripts may ask for growth on a capped GPU", optional=True),
    Part("guard", NEEDED, "tensorflow.python.autograph.core.ag_ctx", ("ControlStatusCtx", "Status"),
         "a function that runs as Python is converted as TensorFlow would"),
    Part("guard", NEEDED, "tensorflow.python.autograph.impl.api", ("tf_convert",),
         "and by it"),
    Part("guard", NEEDED, "tensorflow.python.client.pywrap_tf_session", ("TF_DeviceList*",),
         "what a device's allocator may hand out", optional=True),
    # The same on JAX.
    *(
        Part("guard", REPLACED, JAX_TRAINER, (f"make_{kind}_function",),
             "hands Keras a guarded function instead of its own",
             takes=("self", "force"), knows=(f"{kind}_function",))
        for kind in ("train", "test", "predict")
    ),
    Part("guard", REPLACED, JAX_TRAINER, ("fit", "evaluate", "predict", "train_on_batch",
         "test_on_batch", "predict_on_batch"), "tells when a call begins and ends"),
    Part("guard", NEEDED, JAX_TRAINER, ("train_step", "test_step", "predict_step"),
         "the steps, as functions of a state", takes=("state", "data")),
    Part("guard", REPLACED, JAX_TRAINER, ("_get_jax_state",),
         "the state that is taken from a model is kept on it at once",
         takes=("trainable_variables", "non_trainable_variables", "optimizer_variables",
                "metrics_variables", "purge_model_variables")),
    Part("guard", NEEDED, JAX_TRAINER, ("jax_state_sync",), "and given back to it",
         knows=("_jax_state", "_jax_state_synced")),
    Part("guard", NEEDED, "keras.src.backend.config", ("is_nnx_enabled",),
         "Keras in its NNX mode trains in another way", optional=True),
    Part("guard", REPLACED, LAYER, ("__init__",), "a cap is put on with the first layer"),
    Part("slices", ON_OBJECT, OPTIMIZER, ("stateless_apply",),
         "gradients are caught on their way to the weights, on JAX"),
    Part("slices", BRIEFLY, JAX_RANDOM,
         ("normal", "uniform", "truncated_normal", "randint", "dropout", "categorical", "gamma",
          "binomial", "beta", "shuffle"), "slices draw the rows of the whole batch"),
    Part("slices", NEEDED, JAX_RANDOM, ("jax_draw_seed",), "with the key that it would have"),
    Part("slices", NEEDED, "keras.src.backend.common.name_scope", ("current_path",),
         "which layer draws"),
    Part("slices", NEEDED, "keras.src.backend.common.masking", ("get_keras_mask", "set_keras_mask"),
         "masks, where they lie beside a tensor", optional=True),
    Part("slices", NEEDED, "jax.extend.random", ("define_prng_impl", "threefry2x32_p"),
         "a kind of key that draws later rows"),
    Part("slices", NEEDED, "jax.extend.core", ("Literal", "jaxpr_as_fun"),
         "a step by hand is cut between its operations", optional=True),
    # The same on PyTorch.
    *(
        Part("guard", REPLACED, TORCH_TRAINER, (f"make_{kind}_function",),
             "hands Keras a guarded function instead of its own",
             takes=("self", "force"), knows=(f"{kind}_function",))
        for kind in ("train", "test", "predict")
    ),
    Part("guard", REPLACED, TORCH_TRAINER, ("fit", "evaluate", "predict", "train_on_batch",
         "test_on_batch", "predict_on_batch"), "tells when a call begins and ends"),
    Part("guard", NEEDED, TORCH_TRAINER, ("train_step", "test_step", "predict_step"), "the steps"),
    Part("guard", REPLACED, TORCH_AUTOGRAD, ("backward",),
         "losses of slices are weighted, and a slice ends there",
         takes=("tensors", "grad_tensors")),
    Part("guard", REPLACED, TORCH_MODULE, ("zero_grad",), "gradients of slices add up"),
    Part("guard", REPLACED, TORCH_MODULE, ("__init__",), "a cap is put on with the first module"),
    Part("guard", REPLACED, TORCH_OPTIMIZER, ("zero_grad",), "the same"),
    Part("guard", ON_OBJECT, TORCH_OPTIMIZER, ("step",), "a step on trial moves nothing"),
    Part("guard", REPLACED, TORCH_SCALER, ("scale",), "which loss was scaled"),
    Part("guard", NEEDED, TORCH_SCALER, ("__init__",), "a step that failed is not half unscaled",
         knows=("_per_optimizer_states",)),
    Part("guard", NEEDED, "torch.optim.optimizer", ("register_optimizer_step_pre_hook",),
         "tells when an optimizer is about to move"),
    Part("guard", NEEDED, "torch", ("_foreach_copy_", "_foreach_mul_"),
         "many tensors are changed in one launch"),
    Part("guard", NEEDED, "torch.utils._python_dispatch:TorchDispatchMode", (),
         "memory of a CPU is counted, and noise held still"),
    Part("guard", NEEDED, "torch",
         (
          "_BatchNorm", "_backward_hooks", "_cdata", "_clear_losses", "_growth_tracker",
          "_post_accumulate_grad_hooks", "_pytree", "_qualified_op_name", "_schema",
          "_seed_generators", "_version", "_wrapped_by_lr_sched",
         ),
         "versions and storages of tensors, ops as they are dispatched, and the like",
         optional=True),
    # Batches in slices.
    Part("slices", REPLACED, LOSSES, ("reduce_weighted_values",),
         "a slice's loss is a share of the batch's",
         takes=("values", "sample_weight", "mask", "reduction", "dtype")),
    Part("slices", BRIEFLY, TORCH_LOSSES, ("cross_entropy_loss", "nll_loss_nd"),
         "a slice's loss is divided by its share of what the batch counts"),
    Part("slices", NEEDED, LOSSES, ("apply_mask",), "what Keras divides a loss by",
         takes=("sample_weight", "mask", "dtype", "reduction")),
    Part("slices", REPLACED, f"{LOSSES}:Loss", ("__call__",), "messages name the loss"),
    Part("slices", REPLACED, LAYER, ("add_loss",), "added losses count once", takes=("loss",)),
    Part("slices", REPLACED, LOSS_SCALE_OPTIMIZER, ("scale_loss",),
         "a slice's share comes before the scale", takes=("loss",)),
    Part("slices", ON_OBJECT, METRIC, ("update_state", "result"),
         "metrics of a batch are updated once, with all its slices"),
    Part("slices", NEEDED, "keras.src.trainers.trainer:Trainer", ("compile",),
         "the losses that a model was compiled with", knows=("_compile_loss",)),
    Part("slices", NEEDED, LAYER, (), "what a layer writes beside its weights",
         knows=("_non_trainable_variables",)),
    Part("slices", NEEDED, METRIC, ("_variables",), "where a variable belongs to", optional=True),
    Part("slices", NEEDED, "keras.src.trainers.compile_utils:CompileLoss", ("metrics",),
         "the means that Keras reports losses by"),
    Part("slices", BRIEFLY, "keras.src.backend.tensorflow.numpy", ("square", "abs"),
         "sparse gradients are added up in tables"),
    Part("slices", BRIEFLY, "keras.src.layers:BatchNormalization", ("call",),
         "a step is compared with its slices, BatchNorm held still"),
    Part("slices", NEEDED, f"{_FRAMEWORK}.op_callbacks", ("add_op_callback", "remove_op_callback"),
         "a comparison sees what gradients are decided by, and what is read"),
    Part("slices", BRIEFLY, "tensorflow:GradientTape", ("gradient",),
         "a step is compared with itself, its gradients made larger"),
    *(
        Part("slices", BRIEFLY, f"{_OPS}.{module}", ("*",),
             "a slice draws the numbers that the batch would have drawn", optional=True)
        for module in ("gen_random_ops", "gen_stateful_random_ops", "gen_stateless_random_ops",
                       "gen_stateless_random_ops_v2")
    ),
    Part("slices", BRIEFLY, f"{_OPS}.gen_lookup_ops", ("lookup_table_*",),
         "a step on trial changes no table", optional=True),
    Part("slices", BRIEFLY, f"{_OPS}.gen_dataset_ops", ("iterator_get_next*",),
         "a step on trial takes no batch from a data set", optional=True),
    Part("slices", BRIEFLY, f"{_OPS}.gen_summary_ops", ("write_*", "import_event"),
         "summaries are written once a step, and not on trial", optional=True),
    Part("slices", BRIEFLY, f"{_OPS}.gen_logging_ops", ("print_v2",),
         "a step on trial prints nothing", optional=True),
    Part("slices", BRIEFLY, f"{_OPS}.script_ops", ("_internal_py_func", "py_func_common"),
         "Python that a step calls by TensorFlow is named", optional=True),
    *(
        Part("slices", BRIEFLY, module, ("*",), "a step on trial draws from a copy", optional=True)
        for module in ("random", "numpy.random")
    ),
    # Layers that run again for their gradients.
    Part("recompute", ON_OBJECT, FUNCTIONAL, ("_run_through_graph",),
         "the layers of a model run in blocks"),
    Part("recompute", ON_OBJECT, LAYER, ("call",), "a layer is a block by itself"),
    Part("recompute", NEEDED, FUNCTIONAL, (),
         "the order in which layers run", knows=("_nodes_by_depth", "_outputs_struct")),
    Part("recompute", NEEDED, "keras.src.models.sequential:Sequential", (),
         "the functional model inside", knows=("_functional",)),
    Part("recompute", NEEDED, "keras.src.ops.symbolic_arguments:SymbolicArguments", ("fill_in",),
         "what a layer is called with"),
    Part("recompute", BRIEFLY, VARIABLE, ("assign",),
         "the second run begins with what the first one changed"),
    Part("recompute", NEEDED, "tensorflow.compiler.tf2xla.python.xla", ("optimization_barrier",),
         "XLA keeps the two runs apart"),
    Part("recompute", NEEDED, LAYER, ("add_loss",), "losses are told to the layers that add them",
         knows=("_loss_ids",), optional=True),
    Part("recompute", NEEDED, "torch.utils.checkpoint", ("checkpoint",),
         "runs a block again", takes=("use_reentrant", "context_fn")),
    Part("recompute", NEEDED, "torch.utils.checkpoint", ("set_checkpoint_early_stop",),
         "a block runs again as a whole"),
    # Trainings that resume.
    Part("resume", REPLACED, "keras.src.backend.tensorflow.trainer", ("TFEpochIterator",),
         "counts what a training has taken from its data"),
    Part("resume", NEEDED, TRAINER, ("fit",), "a training begins at a later epoch",
         takes=("initial_epoch", "callbacks"), knows=("TFEpochIterator", "_initial_epoch")),
    Part("resume", NEEDED, _EPOCHS, (), "where Keras is in an epoch",
         knows=("_distributed_dataset", "data_adapter", "steps_per_epoch", "steps_per_execution",
                "_num_batches", "_steps_seen")),
    Part("resume", NEEDED, _EPOCHS, ("enumerate_epoch",), "an epoch as Keras asks for it",
         until="3.6"),
    Part("resume", NEEDED, _EPOCHS, ("__iter__",), "an epoch as Keras asks for it", since="3.7"),
    Part("resume", NEEDED, _EPOCHS, ("_current_iterator",), "an iterator that lasts for epochs",
         optional=True),
    Part("resume", REPLACED, JAX_EPOCHS, ("JAXEpochIterator",),
         "counts batches, and finds the place in the data again"),
    Part("resume", NEEDED, JAX_TRAINER, ("fit",), "a training begins at a later epoch",
         takes=("initial_epoch", "callbacks"), knows=("JAXEpochIterator", "_initial_epoch")),
    Part("resume", NEEDED, f"{JAX_EPOCHS}:JAXEpochIterator",
         ("_get_iterator", "_enumerate_iterator", "__next__"), "where Keras is in an epoch"),
    Part("resume", REPLACED, TORCH_EPOCHS, ("TorchEpochIterator",),
         "counts what a training has taken from its data"),
    Part("resume", NEEDED, TORCH_TRAINER, ("fit",), "a training begins at a later epoch",
         takes=("initial_epoch", "callbacks"), knows=("TorchEpochIterator", "_initial_epoch")),
    Part("resume", NEEDED, f"{TORCH_EPOCHS}:TorchEpochIterator",
         ("_get_iterator", "_enumerate_iterator", "__next__"),
         "where Keras is in an epoch", since="3.7"),
    Part("resume", NEEDED, f"{_ADAPTERS}.data_adapter_utils", ("get_torch_dataloader",),
         "a stream that begins in its middle is handed to PyTorch as Keras does", optional=True),
    Part("resume", NEEDED, "torch.nn:Module", ("_parameters",),
         "tensors of PyTorch's own in a Keras model", optional=True),
    Part("resume", NEEDED, TORCH_OPTIMIZER, ("_opt_called",),
         "schedulers know that an optimizer has stepped", optional=True),
    Part("resume", NEEDED, "torch.utils.data.dataloader:_SingleProcessDataLoaderIter",
         ("_next_index",), "batches of a loader are passed over without being made",
         optional=True),
    Part("resume", NEEDED, "keras.src.trainers.trainer:Trainer",
         ("_compile_metrics", "_user_loss", "_user_metrics"),
         "whether another process trains the same", optional=True),
    Part("resume", NEEDED, "keras:callbacks.EarlyStopping", ("_set_monitor_op",),
         "callbacks get their state back", optional=True),
    Part("resume", NEEDED, f"{_ADAPTERS}.array_data_adapter:ArrayDataAdapter", (),
         "batches of arrays are passed over without being made"),
    Part("resume", NEEDED, f"{_ADAPTERS}.py_dataset_adapter:PyDatasetAdapter", ("get_tf_dataset",),
         "whether Keras shuffles batches once more"),
    Part("resume", NEEDED, f"{_ADAPTERS}.tf_dataset_adapter:TFDatasetAdapter", ("get_tf_dataset",),
         "the user's own data set"),
    Part("resume", BRIEFLY, "tensorflow:random", ("shuffle",),
         "arrays get an order that another process finds again"),
    Part("resume", REPLACED, DATASET, ("shuffle",),
         "shuffles without a seed get one that another process finds again"),
    # Estimates, which do without any of these: most make a trace shorter.
    Part("estimate", BRIEFLY, OPTIMIZER, ("update_step",),
         "updates that are alike are traced once", optional=True),
    Part("estimate", ON_OBJECT, LOSS_SCALE_OPTIMIZER, ("initial_scale",),
         "gradients of a few samples do not overflow", optional=True),
    Part("estimate", BRIEFLY, "keras.src.initializers.constant_initializers:Zeros", ("__call__",),
         "slots of which only the shape is asked are not made", optional=True),
    Part("estimate", BRIEFLY, f"{_FRAMEWORK}.auto_control_deps", ("_get_resource_inputs",),
         "is asked for each op, and is slow", optional=True),
    Part("estimate", BRIEFLY, "tensorflow.python.util.tf_stack", ("extract_stack",),
         "a graph that never runs needs no line for each op", optional=True),
    Part("estimate", NEEDED, LAYER, ("_build_shapes_dict", "_inputs_struct"),
         "what a model is called with", optional=True),
    Part("estimate", NEEDED, RESOURCE_VARIABLE, ("_handle_name",),
         "a variable is named without a kernel", optional=True),
    Part("estimate", BRIEFLY, VARIABLE, ("_initialize_with_initializer", "_deferred_initialize"),
         "variables of models that are only asked about have no memory, on JAX", optional=True),
    Part("estimate", NEEDED, JAX_TRAINER, ("_symbolic_build",),
         "a model's state is built by shapes alone", takes=("data_batch",)),
    Part("estimate", NEEDED, "torch._subclasses.fake_tensor", ("FakeTensor", "FakeTensorMode"),
         "a step runs without memory"),
    Part("estimate", NEEDED, "torch.utils._python_dispatch", ("TorchDispatchMode",),
         "every op of a step is seen"),
    Part("estimate", NEEDED, "torch", ("_C",), "which op's gradient is computed"),
    Part("estimate", NEEDED, "torch._C", ("_current_autograd_node", "_autograd"), "the same"),
    Part("estimate", NEEDED, "torch._C._autograd", ("_get_sequence_nr",),
         "which layer's op that is"),
    Part("estimate", NEEDED, "torch.autograd.graph:Node", ("_sequence_nr",), "the same"),
    Part("estimate", NEEDED, "torch:ops.aten", ("_local_scalar_dense",),
         "those who look at values are answered"),
    Part("estimate", NEEDED, TORCH_MODULE, (), "fake weights take the places of real ones",
         knows=("_parameters", "_buffers")),
    Part("estimate", NEEDED, "keras.src.backend.torch.core", ("get_device", "to_torch_dtype"),
         "batches are as Keras makes them"),
    Part("estimate", NEEDED, "torch._prims_common", ("suggest_memory_format",),
         "whether a kernel copies what it is given"),
    Part("estimate", NEEDED, "torch.utils.flop_counter", ("flop_registry",),
         "what running a layer again would cost"),
    # `legroom.watch` and `legroom check`.
    Part("watch", REPLACED, TRAINER,
         ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch"),
         "calls are not followed line by line, and a `fit` is looked at"),
    Part("watch", REPLACED, FUNCTION, ("__call__",), "steps are counted"),
    Part("watch", REPLACED, DATASET, ("__init__",), "data sets are counted"),
    Part("watch", REPLACED, DATASET, ("__iter__",), "loops over data sets are seen"),
    Part("watch", REPLACED, "tensorflow.python.eager.polymorphic_function.tracing_compilation",
         ("_create_concrete_function",), "traces are counted", optional=True),
    Part("watch", REPLACED, "tensorflow.python.pywrap_tfe",
         ("TFE_Py_FastPathExecute", "TFE_Py_Execute"), "which line made a tensor", optional=True),
    Part("watch", NEEDED, DATASET,
         ("_inputs", "_buffer_size", "_map_func", "_num_parallel_calls", "_cycle_length",
          "_block_length", "_filename", "_tensors"),
         "the stages of a pipeline, and what they hold", optional=True),
    Part("watch", NEEDED, "tensorflow.core.function.trace_type.default_types:Weakref", ("_ref",),
         "the Python objects that a function was traced for", optional=True),
    Part("watch", NEEDED, "keras:callbacks.Callback", ("_model",),
         "a callback holds its model", optional=True),
    Part("watch", NEEDED, f"{_OPS}.script_ops", ("_py_funcs",),
         "functions that `tf.py_function` keeps", optional=True),
    # Between trainings, and on the screen.
    Part("release", NEEDED, f"{_FRAMEWORK}.ops", ("gradient_registry",),
         "holds the graphs of trainings that are over", optional=True),
    Part("release", NEEDED, TRAINER, ("_eval_epoch_iterator",),
         "holds the data of an evaluation that failed", optional=True),
    Part("release", NEEDED, CONTEXT, ("clear_kernel_cache",),
         "holds memory of steps that are over", optional=True),
    Part("release", NEEDED, "keras.src.backend.common.global_state",
         ("GLOBAL_STATE_TRACKER", "GLOBAL_SETTINGS_TRACKER"),
         "settings survive `clear_session`", optional=True),
    Part("progress bar", BRIEFLY, "keras.src.utils.progbar:Progbar", ("update",),
         "a word about memory behind the metrics", optional=True),
    Part("progress bar", NEEDED, "keras.src.utils.progbar:Progbar",
         ("_values_order", "_values", "_prev_total_width"), "the same", optional=True),
]  # fmt: skip


def as_table() -> str:
    """The registry as a table in Markdown; CONTRIBUTING.md has it."""
    rows = ["| for | what | how | why | checked | since | until |", "|---|---|---|---|---|---|---|"]
    for part in PARTS:
        owner = part.owner.replace(":", ".")
        what = f"`{owner}`" + (": " if part.names else "") + _listed(part.names)
        checked = [f"takes {_listed(part.takes)}"] if part.takes else []
        checked += [f"knows {_listed(part.knows)}"] if part.knows else []
        if part.optional:
            checked = ["may be missing"]
        first, last = KNOWN.get(part.package, ("", ""))
        rows.append(
            f"| {part.purpose} | {what} | {part.how} | {part.why} | "
            f"{'; '.join(checked) or 'is there'} | {part.since or first} | {part.until or last} |"
        )
    return "\n".join(rows)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(as_table())
