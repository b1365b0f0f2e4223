"""``legroom plan``: what a training will need, and the cheapest way that fits, before it runs."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import click

from legroom.backends.base import current
from legroom.cli.command import PATH, Command, check_script, json_flag
from legroom.core.errors import LegroomError
from legroom.machine.devices import find_device

__all__ = ["plan"]


@click.command(
    cls=Command,
    # Options may stand behind the script, as people write them; those not ours are its own.
    context_settings={"ignore_unknown_options": True},
    examples=(
        "legroom plan train.py --memory 1GiB",
        "legroom plan --memory 1GiB train.py -- --batch-size 64",
        "legroom plan --app ResNet50 --batch-size 256 --device t4",
        "legroom plan --model m.keras --batch-size 64 --memory 8GiB --json",
    ),
    exit_codes="0 if a strategy fits, 3 if none does, 2 if the command can't be understood.",
)
@click.argument("script", type=PATH, required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--model", type=PATH, metavar="FILE", help="A saved .keras model.")
@click.option("--app", metavar="NAME", help="A model of keras.applications: ResNet50.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Default: the script's own, otherwise 32.",
)
@click.option("--memory", metavar="SIZE", help="The memory to plan for. Default: what is here.")
@click.option("--device", metavar="NAME", help="Plan for another machine: t4, a100-40, h100, …")
@click.option(
    "--optimizer",
    default="adam",
    metavar="NAME",
    show_default=True,
    help="If --app or --model has none.",
)
@click.option(
    "--length", type=int, metavar="N", help="Your longest sample, for axes of unknown length."
)
@click.option("--mixed-precision", is_flag=True, help="Allow it; it changes results.")
@click.option("--exact", is_flag=True, help="Only what makes the same update as the batch.")
@click.option(
    "--source", default="auto", metavar="SOURCE", help="auto, compiled, probed or traced."
)
@click.option("--again", is_flag=True, help="Plan again, even if the answer is known.")
@json_flag("Print the plan as one JSON document.")
def plan(
    script: Path | None,
    args: tuple[str, ...],
    model: Path | None,
    app: str | None,
    batch_size: int | None,
    memory: str | None,
    device: str | None,
    optimizer: str,
    length: int | None,
    mixed_precision: bool,
    exact: bool,
    source: str,
    again: bool,
    as_json: bool,
) -> None:
    """Estimate what a training needs, and find a plan that fits.

    Nothing is trained. A script runs up to its first `fit`: what it does before that, reading data
    or writing files, it really does. Everything after `--` is the script's own.
    """
    from legroom.cli.workers.plan_question import Question, ask

    unknown = [arg for arg in (str(script), *args) if arg.startswith("-")]
    if unknown and (script is None or str(script).startswith("-")):
        raise click.BadParameter(f"There is no option {unknown[0]}.", param_hint="plan")
    given = [name for name, value in (("SCRIPT", script), ("--model", model), ("--app", app))
             if value is not None]  # fmt: skip
    if len(given) != 1:
        raise click.BadParameter(
            "Give one of: a script, --model FILE, --app NAME. Received: "
            f"{' and '.join(given) or 'none of them'}",
            param_hint="SCRIPT",
        )
    if memory is not None and device is not None:
        raise click.BadParameter("Give --memory or --device, not both.", param_hint="--device")
    if script is not None:
        check_script(script)
    if model is not None:
        _check_model_file(model)
    question = Question(
        script=None if script is None else str(script),
        arguments=args,
        model=None if model is None else str(model),
        app=app,
        batch_size=batch_size,
        budget_bytes=_budget(memory, device),
        optimizer=optimizer,
        length=length,
        allow=("slices", "order", "recompute", *(("mixed_precision",) if mixed_precision else ())),
        exact=exact,
        source=source,
        on_gpu=device is not None and find_device(device).gpu,
    )
    made, before = ask(question, again=again)
    if before is not None:
        click.echo(
            f"legroom: this plan was made on {before:%Y-%m-%d %H:%M}; --again makes a new one",
            err=True,
        )
    _show(made, as_json)


def _check_model_file(model: Path) -> None:
    """Say what is wrong with a saved model's file, before TensorFlow is loaded for it."""
    if not model.is_file():
        what = "is a folder" if model.is_dir() else f"is not in {Path.cwd()}"
        raise click.BadParameter(
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
        return find_device(device).usable_bytes
    if memory is not None:
        from legroom.core.units import parse_size

        return parse_size(memory, whole=current().caps.whole_bytes())
    from legroom.machine.memory import device_limit

    # The process that answers may not see the card: a GPU is not needed to count.
    return device_limit() if current().caps.uses_gpu() else None


def _show(made: Any, as_json: bool) -> None:
    if as_json:
        click.echo(made.to_json(indent=1))
        return
    from rich.console import Console

    from legroom.planning import plan_view

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    console.width = min(console.width, 80)
    console.print(plan_view(made))
