"""The process that answers ``legroom plan``. Run as a file, by `plan_question`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from legroom.cli.workers.plan_question import Question

__all__ = ["main"]

_ON_A_GPU = {
    "tensorflow": "This counts the step as TensorFlow's own executor runs it. On a GPU Keras has "
    "XLA compile it by default, which can take more or less than that.",
    "torch": "This counts the step as PyTorch runs it on a CPU. On a GPU the kernels of cuDNN and "
    "cuBLAS take a few percent more.",
    "jax": "This counts the step as XLA compiles it for a CPU. On a GPU it makes another program, "
    "which can take more or less than that.",
}


def main() -> None:
    """Answer the question in ``sys.argv[1]`` into the file that ``sys.argv[2]`` names."""
    _, text, answer, *arguments = sys.argv
    # This folder is on the module path because the file is run from it; the script's is to be.
    sys.path[0] = str(Path(__file__).parents[3])
    from legroom.cli.workers.plan_question import Question
    from legroom.core.errors import LegroomError

    question = Question.from_json(text)
    worker = _Worker(question, Path(answer))
    try:
        if question.script is not None:
            worker.run_script(question.script, arguments)
        else:
            worker.answer(worker.make_model(), _first(question.batch_size, 32))
    except LegroomError as error:
        worker.fail(error)


class _Worker:
    def __init__(self, question: Question, answer: Path) -> None:
        self._question = question
        self._answer = answer

    def answer(self, model: Any, batch_size: int, data: Any = None) -> None:
        """Plan for a model, and write the plan down."""
        from legroom.backends.base import current
        from legroom.planning import plan

        question = self._question
        made = plan(
            model,
            batch_size,
            memory=question.budget_bytes,
            allow=question.allow,
            exact=question.exact,
            data=data,
            length=question.length,
            source=question.source,
        )
        elsewhere = current().name == "jax" and not current().caps.uses_gpu()
        if question.on_gpu and (elsewhere or made.estimate.source != "compiled"):
            made = dataclasses.replace(made, notes=(*made.notes, _ON_A_GPU[current().name]))
        self._write(made.to_dict())

    def fail(self, error: Exception) -> NoReturn:
        """Write down why there is no plan, and end."""
        self._write({"error": type(error).__name__, "message": str(error)})
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    def _write(self, document: dict[str, Any]) -> None:
        from legroom.core.files import write_atomically

        write_atomically(self._answer, json.dumps(document).encode())

    def make_model(self) -> Any:
        """The saved model, or the application."""
        import keras

        from legroom.backends.base import current
        from legroom.core.errors import LegroomError

        question = self._question
        try:
            optimizer = keras.optimizers.get(question.optimizer)
        except ValueError:
            raise LegroomError(
                f"Keras knows no optimizer {question.optimizer!r}. Give one by its name: "
                "sgd, adam, adamw, rmsprop, …"
            ) from None
        if question.app is None:
            path, files = Path(str(question.model)), current().model_files
            if path.suffix == ".keras":
                return files.imagined_model(files.read_config(path), optimizer)
            return self._load(path, optimizer)
        make = getattr(keras.applications, question.app, None)
        if make is None or not callable(make):
            names = [name for name in dir(keras.applications) if name[0].isupper()]
            raise LegroomError(
                f"keras.applications has no {question.app!r}. It has: {', '.join(names)}"
            )
        model = make(weights=None)
        current().models.compile_by_default(model, optimizer)
        return model

    @staticmethod
    def _load(path: Path, optimizer: Any) -> Any:
        """A model in another format than .keras."""
        import keras

        from legroom.backends.base import current
        from legroom.core.errors import LegroomError

        try:
            model = keras.saving.load_model(str(path))
        except Exception as error:
            raise LegroomError(
                f"{path} can't be loaded as a Keras model: {' '.join(str(error).split())[:300]}"
            ) from error
        if getattr(model, "optimizer", None) is None:
            current().models.compile_by_default(model, optimizer)
        return model

    def run_script(self, script: str, arguments: list[str]) -> None:
        """Run a script up to its first `fit`."""
        from legroom.backends.base import current
        from legroom.core.process.main_script import run_as_main

        current().fits.follow_fits(self._fit)
        run_as_main([script, *arguments])

    def _fit(self, model: Any, data: Any, arguments: dict[str, Any], place: str) -> NoReturn:
        """Plan for what a `fit` was given, and end."""
        from legroom.backends.base import current
        from legroom.core.errors import LegroomError

        y, weights, size = (arguments.get(name) for name in ("y", "sample_weight", "batch_size"))
        try:
            found, shown = current().fits.fitted_data(
                data if y is None else data[0], y, weights, size
            )
            where = f" at {place}" if place else ""
            print(f"legroom: estimating the training{where} …", file=sys.stderr, flush=True)
            self.answer(model, _first(self._question.batch_size, found, 32), shown)
        except LegroomError as error:
            self.fail(error)
        # Not by an exception: a script may catch it, or train something else at its end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _first(*given: int | None) -> int:
    """The first that was given; a 0 was, and is refused later."""
    return next(value for value in given if value is not None)


if __name__ == "__main__":
    main()
