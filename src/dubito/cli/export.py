"""`dubito export`: a run's network as one file that other programs can run, uncertainties included."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dubito.cli.failure import Debug, Trust
from dubito.cli.options import STDOUT, AnyNetwork, Checkpoint, flag, option, require_choice, setting
from dubito.cli.output import file_for_stdout, refuse_terminal, require_writable
from dubito.cli.predict import calibration_of, saved_temperature_of
from dubito.cli.terminal import examples, quoted, size
from dubito.errors import DubitoError, OptionError
from dubito.harmless import say
from dubito.zoo import place_for

if TYPE_CHECKING:
    from torch import nn

    from dubito.runs.run import Run

EXAMPLES = examples(
    "dubito export runs/mnist --out mnist.onnx",
    "dubito export runs/mnist --samples 30 --out mnist.onnx",
    "dubito export runs/mnist --what moments --out mnist-moments.onnx",
    "dubito export runs/mnist --calibrated --out mnist.onnx",
    "dubito export runs/mnist --format torch --out mnist.pt2",
    "dubito predict mnist.onnx photos/",
    note="The file takes images as bytes (N, C, H, W), normalises them, and returns probabilities, "
    "aleatoric and epistemic uncertainty, entropy and mutual information. If the run has them, "
    "it also returns novelty, conformal sets and the decisions of dubito decide. It contains the "
    "class names.",
)
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}


def export(
    run: AnyNetwork,
    out: Annotated[
        Path | None,
        option("FILE", "File to write; - sends it to stdout, and nothing else.", default="RUN.onnx or RUN.pt2"),
    ] = None,
    format: Annotated[str, setting("NAME", "File format: onnx, or torch (.pt2 of torch.export).")] = "onnx",
    what: Annotated[
        str | None,
        option(
            "NAME",
            "How the file predicts: draws (the same weight draws as dubito predict --seed 0), moments (one pass with"
            " means and variances) or mean (no epistemic uncertainty).",
            default="draws; frequentist: mean",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        option("N", "Draws of the weights in the file, with --what draws.", default="10", min=1),
    ] = None,
    calibrated: Annotated[
        bool,
        flag("--calibrated", "Calibrate the probabilities in the file, by the temperature of the run."),
    ] = False,
    checkpoint: Checkpoint = "best",
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Write a network as one ONNX or PyTorch file that runs without dubito."""
    from rich.console import Console

    require_choice("--format", format, tuple(SUFFIXES))
    require_choice("--what", what, (None, "draws", "moments", "mean"))
    file = out or Path(f"{place_for(run) if run.name else run.resolve()}{SUFFIXES[format]}")
    if file == STDOUT:
        refuse_terminal("the file", f"dubito export {quoted(run)} --out - > network{SUFFIXES[format]}")
    elif file.suffix.lower() != SUFFIXES[format]:
        raise OptionError(f"--out is {file}, but a file of format {format} must end in {SUFFIXES[format]}.")
    else:
        require_writable(file)
    from dubito.exporting import export as exported
    from dubito.prediction import Predictor
    from dubito.runs.run import Run
    from dubito.saving import open_folder

    network, source = open_folder(run, checkpoint)
    single = Predictor(network, 2).samples == 1  # it has nothing to draw
    if samples is not None and (what or ("mean" if single else "draws")) != "draws":
        raise OptionError(f"--samples is {samples}, but only --what draws has a number of draws; leave it out.")
    if calibrated and isinstance(source, Run):
        calibration_of(source, "--calibrated", checkpoint)  # which says so if there is none
    # Rules and sets are for the predictions that they were fitted to: by draws, or by a network without any.
    drawn = what in (None, "draws") or single
    if isinstance(source, Run):
        fitted = _fitted(source, checkpoint, drawn, calibrated)
    else:
        fitted = _saved_fitted(source, network, drawn, calibrated)
    write = partial(exported, network, format=format, what=what, samples=samples or 10, **fitted)
    with Console(stderr=True).status("Exporting, which may take a minute ..."):
        try:
            if file == STDOUT:
                with file_for_stdout(f"network{SUFFIXES[format]}") as unnamed:
                    write(out=unnamed)
                return
            write(out=file)
        except OSError as error:  # which would name the temporary file
            raise DubitoError(f"{file} cannot be written: {error.strerror}.") from None
    say(f"Wrote {file} ({size(file.stat().st_size)}).")
    if format == "onnx":
        say(f"Next: dubito predict {quoted(file)} IMAGES...")


def _saved_fitted(folder: Path, network: nn.Module, drawn: bool, calibrated: bool) -> dict[str, Any]:
    """The same of a saved network."""
    from dubito.prediction import Predictor

    predictor = Predictor(network, 1)
    predictor.use_saved(folder)
    rule = predictor.rule if drawn and not calibrated else None
    temperature = saved_temperature_of(folder, calibrated)
    return {"novelty": predictor.novelty, "rule": rule, "temperature": temperature}


def _fitted(run: Run, checkpoint: str, drawn: bool, calibrated: bool) -> dict[str, Any]:
    """What was fitted for the weights of a checkpoint, as options of `dubito.export`."""
    from dubito.decisions import find_rule
    from dubito.prediction import Predictor

    if checkpoint != "best":
        return {}
    calibration, novelty = run.find_calibration(), Predictor(run, 1, "mean").novelty
    rule = find_rule(run, checkpoint=checkpoint) if drawn and not calibrated else None
    if rule is not None and rule.needs_novelty and novelty is None:
        rule = None
    return {
        "novelty": novelty,
        "rule": rule,
        "calibration": calibration if drawn else None,
        "temperature": calibration.temperature if calibrated and calibration is not None else None,
    }
