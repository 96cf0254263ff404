"""`dubito decide`: which predictions of a run to accept, which to review, and what that promises."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dubito.cli.failure import Debug, Trust
from dubito.cli.options import flag, option, run_argument, setting
from dubito.cli.output import require_writable
from dubito.cli.terminal import Column, examples, numbers, print_table, quoted
from dubito.errors import DubitoError, OptionError, TargetError
from dubito.harmless import say
from dubito.scores import SCORES
from dubito.zoo import refuse_to_change

if TYPE_CHECKING:
    from dubito.decisions import Measured, Rule
    from dubito.runs.validation import Validation

EXAMPLES = examples(
    "dubito decide runs/mnist --max-error 0.01 --confidence 0.95",
    "dubito decide runs/mnist --review 0.1",
    "dubito decide runs/mnist --cost-wrong 50 --cost-review 1 --per-class",
    note="The rule is stored in the run folder (decision.json). After that, dubito predict, serve, "
    "report and export give the decision for each image (accept, review or unfamiliar) and the "
    "reason. The guarantee holds for images like the run's validation images, to which the rule "
    "is fitted; test images only check it.",
)
BAR = 40
"""Characters of the longest bar."""


def decide(
    run: Annotated[Path, run_argument("Run folder that dubito train made.")],
    max_error: Annotated[
        float | None,
        option("SHARE", "Goal: at most this share of errors among accepted images, such as 0.01."),
    ] = None,
    review: Annotated[
        float | None,
        option("SHARE", "Goal: review this share of the familiar images, such as 0.1."),
    ] = None,
    min_coverage: Annotated[
        float | None,
        option("SHARE", "Goal: accept at least this share of the familiar images."),
    ] = None,
    cost_wrong: Annotated[
        float | None,
        option("COST", "Goal: least cost. Cost of a mistake that was accepted."),
    ] = None,
    cost_review: Annotated[float | None, option("COST", "Cost of a review, with --cost-wrong.")] = None,
    confidence: Annotated[float, setting("SHARE", "Confidence of the guarantee.")] = 0.95,
    false_alarm: Annotated[
        float | None,
        option(
            "SHARE",
            "Refuse unfamiliar images, at this rate of false alarms; 0 refuses none.",
            default="0.01 if the run has novelty and at least 99 validation images",
        ),
    ] = None,
    per_class: Annotated[bool, flag("--per-class", "Give a guarantee for each predicted class separately.")] = False,
    score: Annotated[
        str | None,
        option(
            "NAME",
            f"Score to rank predictions by: {', '.join(SCORES)}.",
            default="whichever does best on the validation images",
        ),
    ] = None,
    data: Annotated[str | None, option("NAME", "Where the data of the run is now, if it was moved.")] = None,
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Fit a rule that accepts, reviews or refuses predictions, with a guarantee."""
    goal: dict[str, Any] = {"max_error": max_error, "review": review, "min_coverage": min_coverage}
    goal |= {"cost_wrong": cost_wrong, "cost_review": cost_review}
    if all(value is None for value in goal.values()):
        raise OptionError(
            "No goal was given: add --max-error, --review, --min-coverage, or --cost-wrong with --cost-review."
        )
    import torch

    from dubito.decisions import FILE
    from dubito.evaluation.decisions import measure_on_test, open_test, rule_for
    from dubito.evaluation.validation import validation_of
    from dubito.runs.run import Run

    torch.set_flush_denormal(True)  # softplus outputs underflow to denormals, which cost a CPU several times more
    opened = Run.open(run)
    refuse_to_change(run)
    require_writable(run / FILE)
    validation = validation_of(opened, moved=data, progress=True)
    try:
        test, why = open_test(opened, data), ""
    except DubitoError as error:
        if data is not None:
            raise
        test, why = None, str(error)
    if false_alarm is None and validation.prediction.novelty is not None:
        false_alarm = usual_false_alarm(len(validation))
        if not false_alarm:
            few = f"{len(validation)} validation images are too few to refuse unfamiliar ones at 1 % false alarms"
            say(f"{few}, so no image is refused. --false-alarm sets a larger rate.")
    options = {"confidence": confidence, "false_alarm": false_alarm or None, "per_class": per_class, "score": score}
    try:
        rule = rule_for(opened, validation, **goal, **options)
    except TargetError as error:
        raise TargetError(f"{error} No rule was stored.") from None
    measured = None if test is None else measure_on_test(opened, rule, test, progress=True)
    rule.save(run / FILE)  # last: what fails before leaves the rule that was there
    say(_sentence(rule, measured, why))
    _show(rule, measured)
    _show_risks(rule, validation)
    say(f"\nThe rule is in {run / FILE}.")
    say(f"Next: dubito predict {quoted(run)} IMAGES...")


def usual_false_alarm(images: int) -> float:
    """The rate of false alarms unless asked: 1 %, or 0 for never where so few validation images cannot tell it.

    >>> usual_false_alarm(99), usual_false_alarm(98)
    (0.01, 0.0)
    """
    from dubito.prediction.novelty import FALSE_ALARM

    return FALSE_ALARM if round((images + 1) * FALSE_ALARM, 9) >= 1 else 0.0


def _sentence(rule: Rule, measured: Measured | None, why: str) -> str:
    """What the rule promises, and what is measured on the test images or `why` nothing is."""
    from dubito.decisions.words import percent

    promised = rule.describe().rstrip(".")
    if measured is None:
        return f"{promised}; not measured on the test images: {why.rstrip('.')}."
    found = "none was accepted" if measured.error is None else percent(measured.error)
    return f"{promised}; measured on the test images: {found}."


def _show(rule: Rule, measured: Measured | None) -> None:
    """What happens to how many images."""
    from dubito.decisions.words import percent

    parts = {f"{rule.measured.images:,} validation images": rule.measured}
    if measured is not None:
        parts[f"{measured.images:,} test images"] = measured
    say()
    columns = (Column(""), *numbers("accept", "wrong", "review", "unfamiliar"))
    rows = [
        (
            name,
            percent(part.coverage),
            "-" if part.error is None else percent(part.error),
            percent(part.reviewed / part.images),
            percent(part.refused / part.images),
        )
        for name, part in parts.items()
    ]
    print_table(columns, rows)


def _show_risks(rule: Rule, validation: Validation) -> None:
    """The error against the share of reviewed images, as a picture of bars."""
    from dubito.decisions.words import percent
    from dubito.evaluation.decisions import review

    prediction = validation.prediction
    doubt = SCORES[rule.score](prediction)
    assert doubt is not None
    found = review(doubt, prediction.label != validation.labels)
    largest = max(row.error for row in found) or 1.0
    say(f"\nShare of errors that remain if the most doubtful images (by {rule.score.replace('_', ' ')}) are reviewed:")
    columns = (*numbers("reviewed", "wrong"), Column(""))
    rows = [(percent(row.share), percent(row.error), "#" * round(BAR * row.error / largest)) for row in found]
    print_table(columns, rows)
