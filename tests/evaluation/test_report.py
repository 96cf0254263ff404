"""The report is one file with everything in it, and nothing that does not apply."""

import dataclasses
import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from evaluation_runs import make_run
from reported_runs import NASTY, QUICK, reported, shared, strange

from dubito.errors import RunError
from dubito.evaluation import Evaluation, evaluate, illustrations, report
from dubito.evaluation.decisions import decide, decided
from dubito.evaluation.sections import _about_tables, _above, _most, _review_table
from dubito.evaluation.thumbnails import choose_points, sheet
from dubito.runs.run import Run

FIGURES = (
    *("learning-nll", "learning-accuracy", "learning-kl", "reliability", "conformal", "review-curve"),
    "risk-coverage",
    *(
        "histogram-aleatoric",
        "histogram-epistemic",
        "noise-aleatoric",
        "noise-epistemic",
        "noise-accuracy",
        "confusion",
    ),
    *("posterior-mean", "posterior-std", "posterior-snr", "weight-convolution1", "weight-linear7", "weight-std"),
    *("scatter", "most-aleatoric", "most-epistemic", "confidently-wrong"),
)
SECTIONS = (
    *("training", "calibration", "decisions", "mistakes", "uncertainty", "images", "noise", "classes", "posterior"),
    "about",
)


class Page(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def ids(self, tag: str) -> list[str]:
        return [attributes["id"] for name, attributes in self.tags if name == tag and attributes.get("id")]


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    return shared(tmp_path_factory)[0]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    file = shared(tmp_path_factory)[1]
    return file.read_text(encoding="utf-8"), file.parent / "figures"


def page_of(evaluation: Evaluation, folder: Path) -> Page:
    return Page(report.write_report(evaluation, folder / "report.html").read_text(encoding="utf-8"))


def test_every_figure_is_in_the_page_and_in_two_files(written):
    text, folder = written
    page = Page(text)
    assert sorted(page.ids("figure")) == sorted(f"figure-{name}" for name in FIGURES)
    assert sorted(file.name for file in folder.iterdir()) == sorted(f"{n}.{s}" for n in FIGURES for s in ("png", "svg"))
    assert page.ids("section") == ["headline", *SECTIONS]
    for name in FIGURES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / f"{name}.svg").read_text(encoding="utf-8")


def test_nothing_refers_to_the_network_or_to_another_file(written):
    text, _ = written
    for tag, attributes in Page(text).tags:
        for name in ("src", "href", "xlink:href", "action", "poster", "srcset"):
            value = attributes.get(name)
            assert not value or value.startswith(("#", "data:")), (tag, name, value[:80])
        assert tag not in ("iframe", "object", "embed", "base")
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest|import\(", text)
    assert "default-src 'none'" in text


def test_text_of_the_data_is_escaped(written):
    text, _ = written
    page = Page(text)
    assert not any(tag == "b" and not attributes.get("class") for tag, attributes in page.tags)
    for name in NASTY[:8]:
        assert name in page.text
    assert "digits & <co>" in page.text
    assert text.count("<script") == text.count("</script>") == 3


def test_ids_are_unique(written):
    ids = [attributes["id"] for _, attributes in Page(written[0]).tags if attributes.get("id")]
    assert len(ids) == len(set(ids))


def test_the_headline_has_the_evaluations_numbers(evaluation: Evaluation, written):
    text = html.unescape(written[0])
    metrics = evaluation.metrics
    low, high = metrics["intervals"]["accuracy"]
    assert f"{100 * metrics['accuracy']:.1f} %" in text
    assert f"{100 * low:.1f} to {100 * high:.1f} %" in text
    assert f"{metrics['nll']:.3f}" in text
    assert f"{100 * metrics['conformal']['lac']['coverage']:.1f} %" in text
    (apart,) = metrics["ood"].values()
    assert f"{max(found['auroc'] for found in apart.values()):.3f}" in text


def test_the_scatter_has_the_images_of_its_points(evaluation: Evaluation, written):
    (source,) = re.findall(r'<script type="application/json" id="scatter-data">(.*?)</script>', written[0], re.DOTALL)
    data = json.loads(source)
    total = len(evaluation.test) + 60
    assert len(data["aleatoric"]) == len(data["group"]) == len(data["truth"]) == total
    assert data["names"] == ["right", "wrong", "strange"]
    assert data["classes"] == list(NASTY)
    assert data["aleatoric"][:5] == pytest.approx(evaluation.test.prediction.aleatoric[:5].tolist(), rel=1e-3)
    assert data["sheet"]["uri"].startswith("data:image/png;base64,")
    assert data["truth"][-1] is None


def test_it_is_the_same_every_time(evaluation: Evaluation, written, tmp_path: Path):
    again = report.write_report(evaluation, tmp_path / "report.html").read_text(encoding="utf-8")
    assert again == written[0]


def test_a_frequentist_run_leaves_out_what_it_does_not_have_and_says_why(tmp_path: Path):
    page = page_of(reported(tmp_path, inference="frequentist", ood=False, history=False), tmp_path)
    assert "posterior" not in page.ids("section")
    assert "training" not in page.ids("section")
    shown = {name.removeprefix("figure-") for name in page.ids("figure")}
    assert shown < set(FIGURES)
    assert not shown & {"scatter", "most-epistemic", "histogram-epistemic", "noise-epistemic", "learning-kl"}
    for reason in ("there is no posterior to show", "no epistemic uncertainty", "--ood NAME", "no metrics.csv"):
        assert reason in page.text


def test_a_run_without_mistakes_noise_or_trace_has_a_report_too(evaluation: Evaluation, tmp_path: Path):
    perfect = dataclasses.replace(evaluation.test, labels=evaluation.test.prediction.label)
    run = evaluation.runs[0]
    shutil.copytree(run.path, tmp_path / "copy")
    (tmp_path / "copy" / "posterior.csv").unlink()
    metrics = {**evaluation.metrics, "conformal": None, "temperature_scaling": None}
    metrics["errors"] = {
        name: {**found, "auroc": None, "auroc_interval": None} for name, found in metrics["errors"].items()
    }
    changed = dataclasses.replace(
        evaluation, test=perfect, noise=(), metrics=metrics, runs=(type(run).open(tmp_path / "copy"),)
    )
    page = page_of(changed, tmp_path)
    shown = {name.removeprefix("figure-") for name in page.ids("figure")}
    assert not shown & {"confidently-wrong", "conformal", "weight-std", "noise-accuracy"}
    assert "noise" not in page.ids("section")
    for reason in ("no mistake", "no posterior.csv", "no validation images in common"):
        assert reason in page.text


def test_nothing_below_100_percent_is_rounded_to_it(evaluation: Evaluation):
    metrics = {**evaluation.metrics, "conformal": {**evaluation.metrics["conformal"], "requested": 0.996}}
    shown = illustrations.illustrations(dataclasses.replace(evaluation, metrics=metrics), None)
    (conformal,) = [one for one in shown["calibration"] if one.name == "conformal"]
    assert conformal.caption.endswith("includes the true one for 99.6 % of images.")


def test_more_than_20_classes_fold_the_table_and_write_no_counts(evaluation: Evaluation, tmp_path: Path):
    test = evaluation.test
    names = tuple(f"class {i}" for i in range(25))
    padding = torch.nn.functional.pad
    prediction = dataclasses.replace(
        test.prediction,
        **{
            name: padding(getattr(test.prediction, name), (0, 15))
            for name in ("probs", "aleatoric_per_class", "epistemic_per_class")
        },
    )
    row = evaluation.metrics["per_class"][0]
    metrics = {
        **evaluation.metrics,
        "per_class": [{**row, "class": name} for name in names],
        "confusion": torch.ones(25, 25).tolist(),
        "conformal": None,
    }
    wide = dataclasses.replace(
        evaluation, class_names=names, test=dataclasses.replace(test, prediction=prediction), metrics=metrics, ood={}
    )
    page = page_of(wide, tmp_path)
    assert "figure-confusion" in page.ids("figure")
    folded = [tag for tag, _ in page.tags if tag == "details"]
    assert len(folded) == 4  # the classes, and three tables of settings


def test_a_stored_evaluation_is_used_as_long_as_it_fits(tmp_path: Path):
    folder = reported(tmp_path, data="digits").runs[0].path
    before = (folder / "evaluation.json").read_bytes()
    assert report.evaluation_of(folder).metrics["settings"]["samples"] == QUICK["samples"]
    assert report.evaluation_of(folder, samples=QUICK["samples"], ood=[strange(tmp_path)]).ood
    assert (folder / "evaluation.json").read_bytes() == before
    again = report.evaluation_of(folder, samples=2)
    assert again.metrics["settings"]["samples"] == 2
    assert again.ood  # what was not asked to change stays
    assert len(again.noise) == len(QUICK["noise"])
    assert (folder / "evaluation.json").read_bytes() != before
    other = make_run(tmp_path / "other", data="digits", seed=1)
    shutil.copy(other.path / "best.safetensors", folder / "best.safetensors")
    renewed = report.evaluation_of(folder, samples=2)
    assert renewed.metrics["accuracy"] != again.metrics["accuracy"]


def test_a_damaged_evaluation_is_made_again(tmp_path: Path):
    folder = reported(tmp_path, data="digits", ood=False).runs[0].path
    (folder / "evaluation.safetensors").write_bytes(b"half")
    assert len(report.evaluation_of(folder, samples=1).test) > 0


def test_folders_that_are_no_runs_are_refused_in_a_sentence(tmp_path: Path):
    with pytest.raises(RunError, match="no run folder"):
        report.evaluation_of(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"no config\.yaml"):
        report.evaluation_of(tmp_path)
    run = make_run(tmp_path / "run")
    (run.path / "best.safetensors").unlink()
    with pytest.raises(RunError, match="train it for an epoch first"):
        report.evaluation_of(run.path)


def test_an_ensemble_is_reported_from_the_folder_of_its_evaluation(tmp_path: Path):
    runs = [make_run(tmp_path / name, initial_std=std) for name, std in (("a", 0.01), ("b", 0.1))]
    evaluate(runs, **QUICK).save(tmp_path / "both")
    page = page_of(report.evaluation_of(tmp_path / "both"), tmp_path)
    assert "Ensemble of 2" in page.text
    (tmp_path / "both" / "evaluation.safetensors").unlink()
    with pytest.raises(RunError):
        report.evaluation_of(tmp_path / "both")


def test_points_are_the_extremes_and_a_part_of_the_others():
    scores = torch.arange(1000.0)
    chosen = choose_points([scores, -scores], 100)
    assert len(chosen) == len(chosen.unique()) == 100
    assert set(range(975, 1000)) | set(range(25)) <= set(chosen.tolist())
    assert choose_points([scores[:7]], 100).tolist() == list(range(7))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_sheet_has_every_image_in_its_place(channels):
    import base64
    import io

    import numpy as np
    from PIL import Image

    images = (torch.arange(120).view(-1, 1, 1, 1) * 2).expand(-1, channels, 32, 32).byte()
    made = sheet(images)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(made.uri.split(",")[1]))))
    for number in (0, 49, 50, 119):
        row, column = divmod(number, made.columns)
        tile = pixels[row * 32 : row * 32 + 32, column * 32 : column * 32 + 32]
        assert abs(tile.astype(int) - 2 * number).max() <= 3


def test_variances_of_logits_are_no_error_bars_of_probabilities(tmp_path: Path) -> None:
    for head, shown in (("kendall_gal", False), ("softplus", True)):
        folder = tmp_path / head
        folder.mkdir()
        evaluation = reported(folder, head=head, ood=False, history=False)
        assert illustrations.has_epistemic(evaluation)
        assert illustrations.has_error_bars(evaluation) == shown
        variance = evaluation.test.prediction.epistemic_per_class
        spread = illustrations.probability_std(evaluation, torch.arange(len(variance)))
        torch.testing.assert_close(spread.square(), variance if shown else torch.zeros_like(variance))
        text = page_of(evaluation, folder).text
        assert ("error bars" in text) == shown
        named = [name for table in _about_tables(evaluation) for name, _ in table.rows]
        assert "samples" in named
        assert "places" not in named


def test_other_data_may_be_called_right_or_wrong(tmp_path: Path) -> None:
    evaluation = reported(tmp_path, history=False)
    (part,) = evaluation.ood.values()
    named = dataclasses.replace(evaluation, ood={"folder/wrong.npz": part})
    shown = illustrations.points(named)
    assert set(shown.groups) <= {"right", "wrong", "wrong (data)"}
    assert shown.groups.count("wrong (data)") > 0


def test_images_of_a_folder_are_called_by_their_files(tmp_path: Path) -> None:
    from PIL import Image

    pixels = torch.randint(0, 256, (60, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for number, image in enumerate(pixels.numpy()):
        place = tmp_path / "photos" / ("train", "test")[number % 2] / ("cat", "dog")[number % 4 // 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number} <i>.png")
    run = make_run(tmp_path / "run", data=str(tmp_path / "photos"))
    made = evaluate(run, **QUICK)
    made.save(run.path)
    again = Evaluation.load(run.path)
    for evaluation in (made, again):
        assert evaluation.test.name_of(0) == "cat/1 <i>.png"
        assert [evaluation.test[3:5].name_of(0), evaluation.test[torch.tensor([4, 3])].name_of(1)] == [
            evaluation.test.name_of(3)
        ] * 2
    page = page_of(again, tmp_path)
    shown = illustrations.chosen_images(again)["most-aleatoric"].tolist()
    for number in shown:
        assert again.test.name_of(number) in page.text
    assert str(tmp_path) not in page.text.split("Settings of the evaluation")[0]


def test_uncertainties_are_compared_with_those_of_validation_images(evaluation: Evaluation, written) -> None:
    page = Page(written[0])
    usual = evaluation.validation.prediction.aleatoric
    number = int(illustrations.chosen_images(evaluation)["most-aleatoric"][0])
    value = evaluation.test.prediction.aleatoric[number]
    share = float((usual < value).double().mean())
    shown = "all" if share == 1 else _most(share)
    assert f"aleatoric above {shown} of validation images ({float(value):.2g})" in page.text
    assert f"image {number}" in page.text
    bare = dataclasses.replace(evaluation, validation=evaluation.validation[:0])
    assert _above(bare, "aleatoric", value.reshape(1)) == []


def test_the_report_says_what_review_buys(evaluation: Evaluation) -> None:
    table = _review_table(evaluation)
    test = evaluation.test
    wrong = int((test.prediction.label != test.labels).sum())
    assert table.rows[0][0] == "0 %"
    assert table.rows[0][3] == f"{wrong:,} of {len(test):,}"
    assert [row[0] for row in table.rows][-1] == "50 %"


def test_decisions_are_shown_with_their_rule_and_a_run_without_one_says_how_to_get_it(own_run: Path, tmp_path: Path):
    evaluation = evaluate(Run.open(own_run), samples=10, bootstrap=20, noise=())
    without = page_of(evaluation, tmp_path)
    assert "no rule yet" in without.text
    assert f"dubito decide {own_run.name} --max-error 0.01" in without.text
    assert "least like the training images" in without.text
    assert "novelty above " in without.text
    rule = decide(Run.open(own_run), Run.open(own_run).validation(), review=0.3, false_alarm=0.05)
    page = page_of(evaluation, tmp_path)
    assert "no rule yet" not in page.text
    assert rule.describe() in page.text
    assert "above a limit that 5 % of familiar images exceed" in page.text
    found = decided(evaluation)
    assert found is not None
    expected = rule.measure(evaluation.test.prediction, evaluation.test.labels)
    assert found.measured == expected
    assert [count for count, _ in found.counts.values()] == [expected.accepted, expected.reviewed, expected.refused]
    assert found.counts["accept"][1] == expected.wrong
    assert sum(wrong for _, wrong in found.counts.values()) == int(
        (evaluation.test.prediction.label != evaluation.test.labels).sum()
    )
    assert "review: " in page.text  # beside a thumbnail


def test_a_meter_shows_novelty_among_validation_images_with_the_limit(own_run: Path, tmp_path: Path) -> None:
    evaluation = evaluate(Run.open(own_run), samples=2, bootstrap=20, noise=())
    usual, novelty = evaluation.validation.prediction.novelty, evaluation.test.prediction.novelty
    chosen = [number for index in illustrations.chosen_images(evaluation).values() for number in index.tolist()]
    expected = [100 * float((usual < novelty[number]).double().mean()) for number in chosen]
    meter = r'aria-valuenow="([\d.]+)"><b style="width: \1%"></b>(?:<i style="left: ([\d.]+)%"></i>)?'
    page_of(evaluation, tmp_path)
    found = re.findall(meter, (tmp_path / "report.html").read_text())
    assert [float(at) for at, _ in found] == pytest.approx(expected, abs=0.01)
    assert {limit for _, limit in found} == {""}
    rule = decide(Run.open(own_run), Run.open(own_run).validation(), review=0.3, false_alarm=0.05)
    page = page_of(evaluation, tmp_path)
    assert "Beyond the mark, the limit of the rule, it is unfamiliar." in page.text
    marked = [(float(at), float(limit)) for at, limit in re.findall(meter, (tmp_path / "report.html").read_text())]
    refused = [bool(novelty[number] > rule.novelty_threshold) for number in chosen]
    assert [at > limit for at, limit in marked] == refused
    assert {True, False} == set(refused)
    assert 94 < marked[0][1] < 96
