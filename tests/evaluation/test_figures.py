"""Figures show the numbers that they were given."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from reported_runs import learning, trace

from dubito.evaluation import figures, metrics, style


@pytest.fixture
def predictions() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    probs = torch.softmax(2 * torch.randn(400, 5, generator=generator), 1)
    labels = torch.multinomial(probs, 1, generator=generator).squeeze(1)
    return probs, labels


def axes(painter):
    return style.draw(painter).axes[0]


def lines(ax) -> dict[str, np.ndarray]:
    return {line.get_label(): np.asarray(line.get_xydata()) for line in ax.get_lines()}


def test_no_figure_touches_pyplot_or_its_global_state():
    # Asking for the backend would import pyplot.
    code = (
        "import sys, matplotlib; from dubito.evaluation import figures, style; "
        "state = lambda: {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'}; before = state(); "
        "f = style.draw(lambda ax: figures.risk_coverage(ax, [0, 1], {'entropy': [1, 2]})); style.to_png(f); "
        "assert state() == before; print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_matplotlib_is_imported_by_figures_alone():
    code = "import sys, dubito.evaluation, dubito.evaluation.report, dubito.cli; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_every_function_draws_on_an_axes_of_the_users_own(predictions):
    probs, labels = predictions
    ax = Figure().add_subplot()
    figures.reliability_diagram(ax, probs, labels)
    assert ax.get_xlabel() == "confidence"


def test_reliability_diagram_has_the_accuracy_of_every_bin_that_holds_an_image(predictions):
    probs, labels = predictions
    ax = axes(lambda ax: figures.reliability_diagram(ax, probs, labels, bins=10))
    table = metrics.reliability(probs.double(), labels, 10)
    filled = table.count > 0
    (container,) = [c for c in ax.containers if c.get_label() == "accuracy"]
    drawn = container.lines[0].get_xydata()
    np.testing.assert_allclose(drawn, torch.stack([table.confidence, table.accuracy], 1)[filled].numpy())
    (segments,) = [bars.get_segments() for bars in container.lines[2]]
    assert all(low[1] <= y <= high[1] for (low, high), (_, y) in zip(segments, drawn, strict=True))
    assert sum(bar.get_height() for bar in ax.patches) == pytest.approx(1)


def test_wilson_intervals_are_the_textbook_ones():
    down, up = figures._wilson_errors(np.array([0.5, 1.0]), np.array([10.0, 10.0]))
    np.testing.assert_allclose([0.5 - down[0], 0.5 + up[0]], [0.2366, 0.7634], atol=1e-4)
    np.testing.assert_allclose([1 - down[1], 1 + up[1]], [0.7225, 1.0], atol=1e-4)


def test_risk_coverage_ends_at_the_error_rate_and_the_oracle_keeps_mistakes_for_last(predictions):
    probs, labels = predictions
    wrong = probs.argmax(1) != labels
    ax = axes(lambda ax: figures.risk_coverage(ax, wrong, {"entropy": -probs.amax(1)}))
    drawn = lines(ax)
    for curve in drawn.values():
        np.testing.assert_allclose(curve[-1], [1, float(wrong.double().mean())])
    oracle = drawn["oracle"]
    assert (oracle[oracle[:, 0] <= 1 - float(wrong.double().mean()), 1] == 0).all()
    assert (drawn["entropy"][:, 1] >= oracle[:, 1] - 1e-12).all()


def test_risk_coverage_of_a_good_network_is_zoomed_to_its_mistakes():
    wrong = np.arange(2000) % 100 == 0  # 1 %
    ax = axes(lambda ax: figures.risk_coverage(ax, wrong, {"entropy": np.random.default_rng(0).random(2000)}))
    assert ax.get_xlim() == (0.9, 1)
    assert ax.get_ylim() == pytest.approx((0, 0.01 * 4 / 3))
    assert all(curve[0, 0] == pytest.approx(0.9) for curve in lines(ax).values())


def test_every_group_of_a_histogram_adds_up_to_1_whatever_its_size():
    groups = {"right": np.geomspace(1e-9, 1e-2, 500), "wrong": [1e-3, 1e-2], "other": np.zeros(3)}
    ax = axes(lambda ax: figures.uncertainty_histogram(ax, groups, "epistemic"))
    outlines = [patch for patch in ax.patches if patch.get_label() in groups]
    assert len(outlines) == 3
    for outline in outlines:
        assert outline.get_data().values.sum() == pytest.approx(1)
    assert ax.get_xscale() == "log"


def test_scatter_has_a_point_for_each_image_in_the_colour_of_its_group():
    ax = axes(
        lambda ax: figures.uncertainty_scatter(ax, [1e-3, 1e-2, 1e-1], [1e-5, 0, 1e-3], ["right", "wrong", "wrong"])
    )
    counts = {collection.get_label(): len(collection.get_offsets()) for collection in ax.collections}
    assert counts == {"right": 1, "wrong": 2}


def test_learning_curves_are_the_rows():
    rows = learning(4)
    drawn = lines(axes(lambda ax: figures.learning_curves(ax, rows, "nll")))
    np.testing.assert_allclose(drawn["validation"][:, 1], [row["val_nll"] for row in rows])
    np.testing.assert_allclose(drawn["training"][:, 1], [row["train_nll"] for row in rows])
    (kl,) = lines(axes(lambda ax: figures.learning_curves(ax, rows, "kl"))).values()
    np.testing.assert_allclose(kl[:, 1], [row["kl"] for row in rows])


def test_noise_response_shades_the_intervals():
    ax = axes(lambda ax: figures.noise_response(ax, [0, 0.1], [1, 2], "epistemic", [(0.5, 1.5), (1.5, 2.5)]))
    corners = ax.collections[0].get_paths()[0].vertices
    assert {tuple(corner) for corner in corners} >= {(0, 0.5), (0, 1.5), (0.1, 1.5), (0.1, 2.5)}


@pytest.mark.parametrize(("classes", "numbers"), [(3, True), (21, False)])
def test_confusion_writes_counts_only_where_there_is_room(classes, numbers):
    matrix = np.eye(classes) * 7
    ax = axes(lambda ax: figures.confusion(ax, matrix, [f"class {i}" for i in range(classes)]))
    assert [text.get_text() for text in ax.texts] == (["7"] * classes if numbers else [])
    np.testing.assert_allclose(ax.images[0].get_array(), np.eye(classes))


def test_gallery_has_an_image_with_bars_and_error_bars_for_each():
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    probs, spread = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4]]), torch.full((2, 3), 0.2)
    ax = axes(lambda ax: figures.gallery(ax, images, probs, spread, ("a", "$b$", "c"), [0, 2]))
    assert len(ax.images) == 2
    tracks, bars = ax.patches[::2], ax.patches[1::2]
    assert all(track.get_width() == 0.8 for track in tracks)
    assert sorted(bar.get_width() / 0.8 for bar in bars) == pytest.approx(sorted(probs.flatten().tolist()))
    errors = [line.get_xdata() for line in ax.get_lines()]
    assert (errors[0][1] - errors[0][0]) / 0.8 == pytest.approx(0.4)
    assert all(end - start <= 0.8 for start, end in errors)


def test_set_sizes_are_shares_of_the_images():
    ax = axes(lambda ax: figures.conformal_set_sizes(ax, {"lac": [1, 1, 2, 0], "aps": [1, 3, 3, 3]}))
    first, second = ax.containers
    np.testing.assert_allclose([bar.get_height() for bar in first], [0.25, 0.5, 0.25, 0])
    np.testing.assert_allclose([bar.get_height() for bar in second], [0, 0.25, 0, 0.75])


def test_posterior_by_layer_has_a_row_for_each_layer_first_on_top():
    layers = {"first": torch.rand(50), "second": torch.rand(3, 4) + 1e-3}
    for quantity in ("mean", "std", "snr"):
        ax = axes(lambda ax, quantity=quantity: figures.posterior_by_layer(ax, layers, quantity))
        heights = {tick.get_text(): place for tick, place in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)}
        assert heights == {"first": 1, "second": 0}


def test_the_distribution_of_a_weight_integrates_to_1_at_every_epoch_shown():
    rows = [row for row in trace(100) if row["layer"] == "linear7"]
    ax = axes(lambda ax: figures.weight_over_epochs(ax, rows))
    drawn = lines(ax)
    assert "epoch 1" in drawn
    assert "epoch 100" in drawn
    first = drawn["epoch 1"]  # later ones are narrower than the grid
    assert first[:, 1].sum() * (first[1, 0] - first[0, 0]) == pytest.approx(1, abs=0.01)
    assert len(drawn) == 5


def test_std_over_epochs_has_a_line_for_each_layer():
    traces = {layer: [row for row in trace(5) if row["layer"] == layer] for layer in ("convolution1", "linear7")}
    drawn = lines(axes(lambda ax: figures.std_over_epochs(ax, traces)))
    np.testing.assert_allclose(drawn["linear7"][:, 1], [0.1 / epoch for epoch in range(1, 6)])


def test_svg_is_text_and_the_same_every_time():
    figure = style.draw(lambda ax: figures.learning_curves(ax, learning(3)))
    svg = style.to_svg(figure, "learning")
    again = style.to_svg(style.draw(lambda ax: figures.learning_curves(ax, learning(3))), "learning")
    assert svg == again
    assert ">epoch</text>" in svg


def test_inline_svg_follows_the_theme_and_keeps_its_ids_apart():
    figure = style.draw(lambda ax: figures.reliability_diagram(ax, [[0.6, 0.4]], [0]))
    svg = style.inline_svg(style.to_svg(figure, "name"), "name", 'a "title" <here>')
    assert not any(color in svg for color in style.COLORS.values())
    assert "var(--aleatoric)" in svg
    assert 'aria-label="a &quot;title&quot; &lt;here&gt;"' in svg
    ids = [part.split('"')[0] for part in svg.split(' id="')[1:]]
    assert ids
    assert all(name.startswith("name-") for name in ids)
    references = [part.split(")")[0].split('"')[0] for part in svg.replace('href="#', "url(#").split("url(#")[1:]]
    assert set(references) <= set(ids)


def test_png_has_300_dots_per_inch():
    import io

    from PIL import Image

    png = Image.open(io.BytesIO(style.to_png(style.draw(lambda ax: ax.plot([1, 2]), (2.0, 1.0)))))
    assert png.size == (600, 300)


def test_light_and_dark_colours_mean_the_same():
    assert style.COLORS.keys() == style.DARK.keys()
