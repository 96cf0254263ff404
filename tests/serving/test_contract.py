"""What the end points answer."""

from __future__ import annotations

import base64
import io
import json
import re
import time

import pytest
import torch
from PIL import Image

from dubito.runs.config import configure
from dubito.runs.run import NETWORK, Run
from dubito.serving.answer import predictions
from dubito.serving.batching import Job
from dubito.serving.model import ServedModel
from dubito.serving.refusal import REFUSALS
from dubito.serving.request import Options


def test_model_tells_what_is_served(server, served_run) -> None:
    with server.client as client:
        model = client.get("/model").json()
    run = Run.open(served_run)
    assert model["name"] == "digits"
    assert (model["model"], model["inference"], model["data"]) == ("lenet5", "vi", "digits")
    assert model["class_names"] == list(run.data.class_names)
    assert (model["channels"], model["size"], model["head"], model["parameters"]) == (1, 32, "softplus", 61706)
    assert (model["samples"], model["max_images"], model["max_samples"]) == (10, 64, 1000)
    assert model["method"] == "weights"
    assert model["methods"] == ["weights", "local", "moments", "mean"]
    assert model["draw"] is True
    assert model["api_key"] is False
    validation = model["validation"]
    calibration = run.calibration()
    assert validation["temperature"] == calibration.temperature
    assert validation["coverage"] == calibration.coverage
    assert validation["images"] == 144  # a tenth of the 1,438 training digits
    assert 0.5 < validation["accuracy"] <= 1
    for kind in ("aleatoric", "epistemic"):
        assert len(validation[kind]) == 101
        assert validation[kind] == sorted(validation[kind])


def test_examples_are_images_that_can_be_predicted(server) -> None:
    with server.client as client:
        examples = client.get("/model").json()["examples"]
        assert 6 <= len(examples) <= 12
        assert [example["id"] for example in examples] == list(range(len(examples)))
        sent = {"images": [example["image"] for example in examples]}
        answer = client.post("/predict", json=sent).json()
    assert len(answer["predictions"]) == len(examples)
    doubt = [p["aleatoric"] + p["epistemic"] for p in answer["predictions"]]
    assert max(doubt[:6]) < min(doubt[6:])  # the sure ones first


def test_form_and_json_ask_for_the_same(server, digit_images) -> None:
    options = {"samples": 7, "seed": 3, "per_class": True, "conformal": 0.9, "draws": True, "preview": True}
    form = server.predict(digit_images[0], **options)
    encoded = base64.b64encode(digit_images[0]).decode()
    with server.client as client:
        plain = client.post("/predict", json={"images": [encoded], **options})
        url = client.post("/predict", json={"images": [f"data:image/png;base64,{encoded}"], **options})
    assert form.status_code == plain.status_code == url.status_code == 200
    assert form.json() == plain.json() == url.json()


def test_an_answer_is_whole_and_consistent(server, digit_images) -> None:
    response = server.predict(
        *digit_images[:3], samples=9, per_class=True, conformal=0.9, draws=True, preview=True, method="weights"
    )
    answer = response.json()
    assert (answer["model"], answer["method"], answer["samples"]) == ("digits", "weights", 9)
    assert len(answer["predictions"]) == 3
    names = [str(digit) for digit in range(10)]
    for prediction in answer["predictions"]:
        assert list(prediction["probabilities"]) == names
        probs = torch.tensor(list(prediction["probabilities"].values()), dtype=torch.float64)
        assert float(probs.sum()) == pytest.approx(1, abs=1e-5)
        assert prediction["index"] == int(probs.argmax())
        assert prediction["label"] == names[prediction["index"]]
        assert prediction["confidence"] == pytest.approx(float(probs.max()))
        draws = torch.tensor(prediction["draws"], dtype=torch.float64)
        assert draws.shape == (9, 10)
        torch.testing.assert_close(draws.mean(0), probs, atol=1e-6, rtol=0)
        per_class = prediction["per_class"]
        torch.testing.assert_close(
            draws.var(0, correction=0), torch.tensor(per_class["epistemic"], dtype=torch.float64), atol=1e-6, rtol=0
        )
        torch.testing.assert_close(
            draws.std(0, correction=0), torch.tensor(per_class["std"]).double(), atol=1e-5, rtol=0
        )
        assert prediction["epistemic"] == pytest.approx(sum(per_class["epistemic"]) / 10, abs=1e-7)
        assert prediction["aleatoric"] == pytest.approx(sum(per_class["aleatoric"]) / 10, abs=1e-7)
        entropy = float(torch.special.entr(probs).sum())
        assert prediction["entropy"] == pytest.approx(entropy, abs=1e-4)
        assert 0 <= prediction["mutual_information"] <= prediction["entropy"]
        assert prediction["conformal"]["coverage"] == 0.9
        inside = prediction["conformal"]["set"]
        assert inside[:1] in ([], [prediction["label"]])
        assert prediction["conformal"]["text"] == (", ".join(inside) or "no class fits")
        assert set(prediction["percentile"]) == {"aleatoric", "epistemic"}
        assert all(0 <= place <= 1 for place in prediction["percentile"].values())
        assert prediction["verdict"]["sentence"].endswith(".")
        seen = Image.open(io.BytesIO(base64.b64decode(prediction["preview"].partition(",")[2])))
        assert (seen.size, seen.mode) == ((32, 32), "L")


def test_calibrated_probabilities_are_those_of_the_record(server, served_run, digit_images) -> None:
    found = Run.open(served_run).calibration()
    (plain,) = server.predict(digit_images[0]).json()["predictions"]
    (calibrated,) = server.predict(digit_images[0], calibrated=True).json()["predictions"]
    (off,) = server.predict(digit_images[0], calibrated=False).json()["predictions"]
    assert off == plain
    before = torch.tensor(list(plain["probabilities"].values()), dtype=torch.float64)
    after = torch.tensor(list(calibrated["probabilities"].values()), dtype=torch.float64)
    expected = before ** (1 / found.temperature)
    expected /= expected.sum()
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-6)
    assert calibrated["confidence"] == pytest.approx(float(after.max()))
    assert calibrated["entropy"] == pytest.approx(float(torch.special.entr(expected).sum()), abs=1e-4)
    for name in ("label", "aleatoric", "epistemic", "percentile", "verdict"):
        assert calibrated[name] == plain[name]
    assert calibrated["conformal"]["coverage"] == found.coverage
    inside = [name for name, p in plain["probabilities"].items() if 1 - p <= found.threshold]
    assert sorted(calibrated["conformal"]["set"]) == inside


def test_an_empty_set_says_that_no_class_fits(server, digit_images) -> None:
    answers = server.predict(*digit_images, conformal=0.02).json()["predictions"]
    empty = [answer["conformal"] for answer in answers if not answer["conformal"]["set"]]
    assert empty
    assert all(each["text"] == "no class fits" for each in empty)


def test_optional_parts_come_only_when_asked_for(server, digit_images) -> None:
    (prediction,) = server.predict(digit_images[0]).json()["predictions"]
    assert not {"per_class", "conformal", "draws", "noise", "rotation", "preview"} & set(prediction)


def test_the_verdict_follows_the_validation_quantiles(server, digit_images) -> None:
    with server.client as client:
        validation = client.get("/model").json()["validation"]
    predictions = server.predict(*digit_images, seed=1).json()["predictions"]
    predictions += server.predict(digit_images[0], noise="0,0.2,0.4,0.8", seed=1).json()["predictions"]
    for prediction in predictions:
        unusual = {kind: prediction[kind] > validation[kind][95] for kind in ("aleatoric", "epistemic")}
        expected = {
            (False, False): "sure",
            (True, False): "ambiguous",
            (False, True): "undecided",
            (True, True): "both",
        }[unusual["aleatoric"], unusual["epistemic"]]
        strange = prediction["novelty"]["percentile"] > 0.99  # of 144 images: above all of them
        assert prediction["verdict"]["level"] == ("unfamiliar" if strange else expected)
        for kind, value in unusual.items():
            assert value == (prediction["percentile"][kind] > 0.95) or prediction["percentile"][kind] > 0.94
    assert len({prediction["verdict"]["level"] for prediction in predictions}) > 1


def test_predictions_are_right_about_as_often_as_in_validation(server, digit_images) -> None:
    from dubito.data import load

    truth = load("digits", "test").labels[:64].tolist()
    predictions = server.predict(*digit_images).json()["predictions"]
    right = sum(prediction["index"] == label for prediction, label in zip(predictions, truth, strict=True))
    with server.client as client:
        accuracy = client.get("/model").json()["validation"]["accuracy"]
    error = (accuracy * (1 - accuracy) * (1 / 64 + 1 / 144)) ** 0.5
    assert abs(right / 64 - accuracy) < 5 * max(error, 0.02)


def test_an_answer_repeats_and_another_seed_draws_anew(server, digit_images) -> None:
    first, second, zero, other = (
        server.predict(digit_images[0], **o).json() for o in ({}, {}, {"seed": 0}, {"seed": 6})
    )
    assert first == second == zero
    assert first != other


def test_methods_without_draws_ignore_samples_and_seed(server, digit_images) -> None:
    drawn = server.predict(*digit_images[:8], samples=200).json()["predictions"]
    for method in ("moments", "mean"):
        first, second = (
            server.predict(*digit_images[:8], method=method, per_class=True, **options).json()
            for options in ({}, {"samples": 7, "seed": 3})
        )
        assert (first["method"], first["samples"]) == (method, None)
        assert first == second
        for prediction, other in zip(first["predictions"], drawn, strict=True):
            assert prediction["confidence"] == pytest.approx(other["probabilities"][prediction["label"]], abs=0.15)
            assert (prediction["epistemic"] == 0) == (method == "mean")
        refused = server.predict(digit_images[0], method=method, draws=True)
        assert refused.status_code == 422
        assert "makes no draws" in refused.json()["error"]


def test_a_list_of_levels_makes_a_curve_of_one_image(server, digit_images) -> None:
    answer = server.predict(digit_images[0], noise="0,0.2,0.4", rotation="30", preview=True, seed=0).json()
    assert [(p["noise"], p["rotation"]) for p in answer["predictions"]] == [(0, 30), (0.2, 30), (0.4, 30)]
    assert len({p["preview"] for p in answer["predictions"]}) == 3
    with server.client as client:
        encoded = base64.b64encode(digit_images[0]).decode()
        turned = client.post("/predict", json={"images": [encoded], "rotation": [0, 90, 360], "preview": True}).json()
    previews = [p["preview"] for p in turned["predictions"]]
    assert previews[0] == previews[2] != previews[1]
    assert [p["rotation"] for p in turned["predictions"]] == [0, 90, 360]
    assert "noise" not in turned["predictions"][0]


def test_one_level_is_for_all_images(server, digit_images) -> None:
    answer = server.predict(*digit_images[:2], noise=0.1, rotation=-15).json()
    assert [(p["noise"], p["rotation"]) for p in answer["predictions"]] == [(0.1, -15), (0.1, -15)]


def test_noise_is_that_of_the_evaluation(server, digit_images) -> None:
    """The preview is the image plus gamma times standard normal noise, clipped only for the eye."""
    answer = server.predict(digit_images[0], noise="0,0.05", preview=True, seed=4).json()
    plain, noisy = (
        torch.frombuffer(
            bytearray(Image.open(io.BytesIO(base64.b64decode(p["preview"].partition(",")[2]))).tobytes()),
            dtype=torch.uint8,
        ).float()
        / 255
        for p in answer["predictions"]
    )
    inside = (plain > 0.2) & (plain < 0.8)
    count = int(inside.sum())
    assert count > 50
    spread = float((noisy - plain)[inside].std())
    assert abs(spread - 0.05) < 5 * 0.05 / (2 * count) ** 0.5 + 1 / 255


def test_a_curve_needs_exactly_one_image(server, digit_images) -> None:
    for options in ({"noise": "0,0.1"}, {"rotation": "0,1"}):
        response = server.predict(*digit_images[:2], **options)
        assert response.status_code == 422
        assert "exactly one image" in response.json()["error"]


def test_true_is_no_number(server, digit_images) -> None:
    image = base64.b64encode(digit_images[0]).decode()
    with server.client as client:
        for name in ("samples", "seed", "conformal", "noise", "rotation"):
            response = client.post("/predict", json={"images": [image], name: True})
            assert (response.status_code, response.json()) == (422, {"error": f"{name} is True, but must be a number."})
        flags = {"per_class": True, "draws": True, "preview": True}
        assert client.post("/predict", json={"images": [image], **flags}).status_code == 200


def test_documentation_loads_nothing_from_outside(server) -> None:
    with server.client as client:
        page = client.get("/docs")
        assert page.status_code == 200
        assert f"{server.url}/predict" in page.text
        assert client.get("/favicon.ico").text.startswith("<svg")
        assert re.findall(r'(?:src|action)="([^"]*)"', page.text) == ["/static/docs.js"]
        assert "https://" not in page.text
        assert client.get("/static/docs.js").headers["content-type"].startswith("text/javascript")
        assert client.get("/docs.css").headers["content-type"].startswith("text/css")
        description = client.get("/openapi.json").json()
    assert {"/predict", "/model", "/health", "/metrics"} <= set(description["paths"])
    assert list(description["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]
    content = description["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert set(content) == {"multipart/form-data", "application/json"}
    responses = description["paths"]["/predict"]["post"]["responses"]
    assert responses.keys() == {"200", *map(str, REFUSALS)}
    assert responses["413"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Refusal"}
    assert description["components"]["schemas"]["Refusal"]["required"] == ["error"]
    assert "conformal" in json.dumps(content)


def test_page_and_its_files_are_served(server) -> None:
    with server.client as client:
        page = client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert client.get("/static/page.js").headers["content-type"].startswith("text/javascript")


def test_metrics_count_requests_and_images(server, digit_images) -> None:
    before = [server.metric(name) for name in ("dubito_images_total", "dubito_batch_images_count")]
    server.predict(*digit_images[:5])
    after = [server.metric(name) for name in ("dubito_images_total", "dubito_batch_images_count")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [5, 1]
    with server.client as client:
        text = client.get("/metrics").text
    assert 'dubito_requests_total{path="/predict",status="200"}' in text
    assert "dubito_queue_images 0.0" in text
    assert 'dubito_request_seconds_bucket{le="0.1",path="/predict"}' in text


def test_auto_is_the_method_of_the_server_unless_draws_are_asked_for(served_run) -> None:
    drawing, still = (ServedModel(Run.open(served_run), method=method) for method in ("auto", "moments"))
    assert [drawing.choose("auto"), drawing.choose("auto", draws=True), drawing.choose("mean")] == [
        *("weights", "weights", "mean")
    ]
    assert [still.choose("auto"), still.choose("auto", draws=True), still.choose("local")] == [
        *("moments", "weights", "local")
    ]


def test_options_in_the_address_are_refused_rather_than_ignored(server, digit_images) -> None:
    with server.client as client:
        answer = client.post("/predict?samples=7", files=[("images", ("a.png", digit_images[0]))])
    assert answer.status_code == 400
    assert answer.json() == {"error": "The address has ?samples=..., but options go into the body, beside the images."}


@pytest.mark.parametrize(
    ("settings", "methods"),
    [
        ({"head": "kendall_gal"}, ["weights", "local", "moments", "mean"]),
        ({"inference": "frequentist"}, ["weights", "mean"]),
        ({"inference": "dropout"}, ["weights", "mean"]),
    ],
    ids=str,
)
def test_other_networks_are_served_too(served_run, tmp_path, settings, methods) -> None:
    """Networks that were never trained, in run folders like those of a training."""
    run = Run(tmp_path / "other", configure(**settings), Run.open(served_run).data)
    run.create()
    torch.manual_seed(0)
    run.write_checkpoint("best", {NETWORK + name: tensor for name, tensor in run.build().state_dict().items()}, {})
    model = ServedModel(run)
    assert model.methods == methods
    predicted = model.predict([Job(torch.randn(2, 1, 32, 32), "weights", 5, time.monotonic() + 600, draws=True)])
    first, second = predictions(model, None, Options(per_class=True, draws=True), predicted)
    assert len(first["per_class"]["epistemic"]) == 10
    assert (first["per_class"]["std"] is None) == ("head" in settings)  # variances of logits
    assert (second["epistemic"] == 0) == ("frequentist" in settings.values())
    assert len(second["draws"]) == (1 if "frequentist" in settings.values() else 5)


def test_what_may_be_null_may_be_null(server, digit_images) -> None:
    image = base64.b64encode(digit_images[0]).decode()
    with server.client as client:
        response = client.post("/predict", json={"images": [image], "noise": None, "rotation": None, "samples": None})
    assert response.status_code == 200, response.text
    assert "noise" not in response.json()["predictions"][0]
