"""``legroom plan``: what a training will need, and the cheapest way that fits, before it runs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer

from legroom.backends.base import current
from legroom.core.errors import LegroomError

__all__ = ["CONTEXT_SETTINGS", "plan"]

# Options may stand behind the script, as people write them; those that are not ours are its own.
CONTEXT_SETTINGS = {
    "allow_interspersed_args": True,
    "ignore_unknown_options": True,
    "help_option_names": ["-h", "--help"],
}


def plan(
    script: Annotated[
        Path | None,
        typer.Argument(
            help="A training script. It runs up to its first `fit`.",
            metavar="[SCRIPT]",
            show_default=False,
        ),
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Argument(help="The script's own arguments.", metavar="[ARGS]", show_default=False),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A saved .keras model.", metavar="FILE", show_default=False),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            help="A model of keras.applications by name, for example ResNet50.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="The batch size. Default: the script's own, otherwise 32.",
            metavar="N",
            min=1,
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="The memory to plan for: 8GiB, 8GB, 80%. Default: what this machine has.",
            metavar="SIZE",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Plan for another machine: t4, p100, v100, l4, a100-40, a100-80, h100, h200, "
            "colab-t4, kaggle-p100, …",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    optimizer: Annotated[
        str,
        typer.Option(
            help="The optimizer for --app, or for a saved model that has none.", metavar="NAME"
        ),
    ] = "adam",
    length: Annotated[
        int | None,
        typer.Option(
            help="The length to assume for input axes of unknown length: your longest sample.",
            metavar="N",
            show_default=False,
        ),
    ] = None,
    mixed_precision: Annotated[
        bool,
        typer.Option("--mixed-precision", help="Allow mixed precision, which changes results."),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Only strategies that make the same update as the whole batch."
        ),
    ] = False,
    source: Annotated[
        str,
        typer.Option(help="How to estimate: auto, compiled, probed or traced.", metavar="SOURCE"),
    ] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan as one JSON document.")
    ] = False,
) -> None:
    """Estimate what a training needs, and find the fastest strategy that fits.

    Nothing is trained. A script is run in a process of its own up to its first `fit`, and then
    ended: what it does before that (reading data, writing files, printing) it really does.

    **Examples**

    `legroom plan train.py --memory 1GiB`

    `legroom plan --memory 1GiB train.py -- --batch-size 64` (behind `--` all is the script's)

    `legroom plan --app ResNet50 --batch-size 256 --device t4`

    `legroom plan --model m.keras --batch-size 64 --memory 8GiB --json`

    **Exit code**: 0 if a strategy fits, 3 if none does, 2 if the command can't be understood.
    """
    from legroom.cli.planning import Question, ask

    unknown = [arg for arg in (str(script), *(args or ())) if arg.startswith("-")]
    if unknown and (script is None or str(script).startswith("-")):
        raise typer.BadParameter(f"There is no option {unknown[0]}.", param_hint="plan")
    given = [name for name, value in (("SCRIPT", script), ("--model", model), ("--app", app))
             if value is not None]  # fmt: skip
    if len(given) != 1:
        raise typer.BadParameter(
            "Give one of: a script, --model FILE, --app NAME. Received: "
            f"{' and '.join(given) or 'none of them'}",
            param_hint="SCRIPT",
        )
    if memory is not None and device is not None:
        raise typer.BadParameter("Give --memory or --device, not both.", param_hint="--device")
    if script is not None:
        from legroom.cli.script import check_script

        check_script(script)
    if model is not None:
        _check_model_file(model)
    question = Question(
        script=None if script is None else str(script),
        arguments=tuple(args or ()),
        model=None if model is None else str(model),
        app=app,
        batch_size=batch_size,
        budget_bytes=_budget(memory, device),
        optimizer=optimizer,
        length=length,
        allow=("slices", "order", "recompute", *(("mixed_precision",) if mixed_precision else ())),
        exact=exact,
        source=source,
    )
    _show(ask(question), as_json)


def _check_model_file(model: Path) -> None:
    """Say what is wrong with a saved model's file, before TensorFlow is loaded for it."""
    if not model.is_file():
        what = "is a folder" if model.is_dir() else f"is not in {Path.cwd()}"
        raise typer.BadParameter(
            f"{model} {what}. Give the .keras file that model.save(…) wrote.",
            param_hint="--model",
        )
    if model.suffix == ".keras" and not zipfile.is_zipfile(model):
        raise LegroomError(
            f"{model} is damaged, or is no Keras model: its {model.stat().st_size} bytes end "
            "too early. Save the model again, or copy the file again."
        )


def _budget(memory: str | None, device: str | None) -> int | None:
    """The budget in bytes.

    Raises:
        BadBudgetError: If it can't be read, no device has the name, or a card has nothing free.
    """
    if device is not None:
        from legroom.machine.devices import find_device

        return find_device(device).usable_bytes
    if memory is not None:
        from legroom.core.units import parse_size

        return parse_size(memory, whole=current().caps.whole_bytes())
    from legroom.machine.memory import device_limit

    # The process that answers may not see the card: a GPU is not needed to count.
    return device_limit() if current().caps.uses_gpu() else None


def _show(made: Any, as_json: bool) -> None:
    if as_json:
        typer.echo(made.to_json(indent=1))
        return
    import sys

    from rich.console import Console

    from legroom.planning import plan_view

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    console.width = min(console.width, 80)
    console.print(plan_view(made))
