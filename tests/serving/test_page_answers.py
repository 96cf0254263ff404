"""The page before answers that a small model on digits does not give, from a server that answers as told.

A hundred classes, colour, no validation images, a key, a busy server, answers that come late or not at all.
"""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

import pytest
from PIL import Image
from test_page import browsing, draw, enter, pixels, prefer, screen, settled, text, wait

pytestmark = pytest.mark.browser

CLASSES = [f"kind of thing {number}" for number in range(100)]
KINDS = {".svg": "image/svg+xml", ".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
QUANTILES = [10 ** (-6 + 0.04 * step) for step in range(101)]


def picture(red: int, side: int = 32) -> str:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (red, 20, 200)).save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def model(**changes: Any) -> dict[str, Any]:
    described = {
        "name": "things",
        "model": "alexnet",
        "inference": "vi",
        "data": "things",
        "class_names": CLASSES,
        "channels": 3,
        "size": 32,
        "head": "softplus",
        "parameters": 1234567,
        "samples": 10,
        "method": "weights",
        "methods": ["weights"],
        "max_images": 64,
        "max_samples": 1000,
        "max_body_bytes": 100_000,
        "max_pixels": 1_000_000,
        "draw": False,
        "api_key": False,
        "validation": {
            "aleatoric": QUANTILES,
            "epistemic": QUANTILES,
            "accuracy": 0.4321,
            "images": 5000,
            "samples": 10,
            "coverage": 0.993,
        },
        "examples": [
            {"id": number, "name": CLASSES[number], "truth": CLASSES[number], "image": picture(40 * number)}
            for number in range(4)
        ],
    }
    return described | changes


def answer(body: dict[str, Any], described: dict[str, Any], label: int = 7) -> dict[str, Any]:
    names = described["class_names"]
    points = max(len(body[name]) if isinstance(body.get(name), list) else 1 for name in ("noise", "rotation"))
    probs = [0.4 / (len(names) - 1)] * len(names)
    probs[label] = 0.6
    one: dict[str, Any] = {
        "label": names[label],
        "index": label,
        "confidence": 0.6,
        "probabilities": dict(zip(names, probs, strict=True)),
        "aleatoric": 0.004,
        "epistemic": 0.001,
        "percentile": {"aleatoric": 0.9, "epistemic": 0.75} if described["validation"] else None,
        "verdict": {"level": "sure", "sentence": "As sure as usual."},
        "per_class": {"std": [0.01] * len(names)},
        "preview": picture(99),
    }
    if body.get("draws"):
        one["draws"] = [probs] * body["samples"]
    return {
        "model": "things",
        "method": body["method"],
        "samples": body.get("samples", 0),
        "predictions": [one] * points,
    }


Reply = tuple[int, dict[str, Any], dict[str, str]]


class Told(ThreadingHTTPServer):
    """A server that answers as its test tells it."""

    daemon_threads = True
    model: dict[str, Any]
    predict: Callable[[dict[str, Any], Any], Reply]
    asked: list[dict[str, Any]]

    def tell(self, **changes: Any) -> None:
        self.model = model(**changes)
        self.predict = lambda body, headers: (200, answer(body, self.model), {})
        self.asked = []


class Handler(BaseHTTPRequestHandler):
    server: Told

    def do_GET(self) -> None:
        if self.path == "/model":
            return self.reply(200, json.dumps(self.server.model).encode(), "application/json")
        file = files("dubito.serving") / "page" / (self.path.removeprefix("/static/").strip("/") or "index.html")
        if not file.is_file():
            return self.reply(404, b"{}", "application/json")
        return self.reply(200, file.read_bytes(), KINDS[file.name[file.name.rindex(".") :]])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        status, content, headers = self.server.predict(body, self.headers)
        self.reply(status, json.dumps(content).encode(), "application/json", headers)

    def reply(self, status: int, content: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Security-Policy", "default-src 'self'; img-src 'self' data: blob:")
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from browsing(tmp_path_factory.mktemp("profile"))


@contextmanager
def telling() -> Iterator[Told]:
    with Told(("127.0.0.1", 0), Handler) as server:
        server.tell()
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def told() -> Iterator[Told]:
    """A server for each test alone: a page asks once more after its answer, perhaps when the next test has begun."""
    with telling() as server:
        yield server


def visit(browser: Any, told: Told) -> None:
    enter(browser, f"http://127.0.0.1:{told.server_port}")


def test_of_a_hundred_classes_the_top_ten_are_shown_and_the_rest_is_summed_up(browser: Any, told: Told):
    visit(browser, told)
    settled(browser)
    rows = browser.find_elements("css selector", "#bars li")
    assert [row.get_attribute("data-index") for row in rows][:1] == ["7"]
    assert len(rows) == 10
    assert "The other 90 classes share 36.4 %." in text(browser, "bars-words")  # 90 of 99 parts of 40 %
    assert browser.get_log("browser") == []


def test_long_class_names_do_not_make_it_scroll_sideways(browser: Any, told: Told):
    visit(browser, told)
    settled(browser)
    for width in (320, 390, 1280):
        screen(browser, width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_a_colour_model_has_no_drawing_pad_but_shows_the_image(browser: Any, told: Told):
    visit(browser, told)
    settled(browser)
    assert not browser.find_element("id", "undo").is_displayed()
    pad = browser.find_element("id", "pad")
    assert pad.get_attribute("tabindex") is None
    pixel = browser.execute_script("return [...arguments[0].getContext('2d').getImageData(280, 280, 1, 1).data]", pad)
    assert pixel == [0, 20, 200, 255]  # of the first sample


def test_a_drawing_for_mnist_fills_a_box_of_20_pixels_with_its_centre_of_mass_in_the_middle(browser: Any, told: Told):
    told.tell(class_names=[str(digit) for digit in range(10)], channels=1, data="mnist", draw=True, examples=[])
    visit(browser, told)
    wait(browser, "return !document.getElementById('ask').hidden")
    draw(browser, ((-0.4, -0.4), (-0.1, -0.4), (-0.3, 0.1)))
    settled(browser)
    sent = [body["images"][0] for body in told.asked if body["noise"] == 0][-1]
    ink = pixels(sent)
    assert len(ink) == len(ink[0]) == 28
    mass = sum(map(sum, ink))
    across = sum(value * (x + 0.5) for row in ink for x, value in enumerate(row)) / mass
    down = sum(value * (y + 0.5) for y, row in enumerate(ink) for value in row) / mass
    assert (across, down) == pytest.approx((14, 14), abs=0.3)
    inked = [y for y, row in enumerate(ink) if max(row) > 20]
    assert 19 <= inked[-1] - inked[0] + 1 <= 21
    assert ink[0] == [0] * 28


def test_without_validation_images_it_says_that_nothing_can_be_compared(browser: Any, told: Told):
    told.tell(validation=None, examples=model()["examples"])
    visit(browser, told)
    settled(browser)
    for kind in ("aleatoric", "epistemic"):
        place = browser.find_element("id", kind)
        assert "no validation images of this model" in place.text
        assert not place.find_element("css selector", "svg").is_displayed()
    assert "validation accuracy unknown" in text(browser, "about")
    assert not browser.find_elements("css selector", ".limit")
    assert "conformal" not in told.asked[0]


@pytest.mark.parametrize(("inside", "said"), [([], "no class fits"), (CLASSES[:2], ", ".join(CLASSES[:2]))])
def test_the_set_of_classes_has_the_coverage_of_the_record(browser: Any, told: Told, inside: list[str], said: str):
    def reply(body: dict[str, Any], handler: Any) -> Reply:
        content = answer(body, told.model)
        content["predictions"][0]["conformal"] = {"coverage": 0.993, "set": inside, "text": said}
        return 200, content, {}

    told.predict = reply
    visit(browser, told)
    settled(browser)
    assert told.asked[0]["conformal"] == 0.993
    assert f"99.3 % set: {said}; such sets" in text(browser, "bars-words").replace("\u00a0", " ")


def test_both_curves_come_in_one_request_after_the_answer(browser: Any, told: Told):
    visit(browser, told)
    settled(browser)
    assert len(told.asked) == 2
    first, second = told.asked
    assert (first["noise"], first["rotation"]) == (0, 0)
    assert len(second["noise"]) == len(second["rotation"]) <= told.model["max_images"]
    assert second["noise"][:2] == [0, 0.025]
    assert (second["rotation"][0], min(second["rotation"]), max(second["rotation"])) == (0, -180, 180)
    assert second["images"] == [picture(99)]  # the small image suffices


def test_a_server_with_a_key_is_asked_with_it_and_the_key_is_kept_for_the_tab_alone(browser: Any, told: Told):
    def guarded(body: dict[str, Any], headers: Any) -> Reply:
        if headers["X-API-Key"] != "open sesame":
            return 401, {"error": "The header X-API-Key is wrong: this server needs its key."}, {}
        return 200, answer(body, told.model), {}

    told.tell(api_key=True)
    told.predict = guarded
    visit(browser, told)
    field = browser.find_element("id", "key-value")
    wait(browser, "return !document.getElementById('key').hidden")
    assert told.asked == []
    field.send_keys("wrong\n")
    wait(browser, "return !document.getElementById('notice').hidden")
    assert "X-API-Key is wrong" in text(browser, "notice")
    field.send_keys("open sesame\n")
    settled(browser)
    assert not browser.find_element("id", "key").is_displayed()
    assert not browser.find_element("id", "notice").is_displayed()
    assert browser.execute_script("return [Object.values(sessionStorage), localStorage.length]") == [["open sesame"], 0]


def test_a_busy_server_is_asked_again_when_it_says(browser: Any, told: Told):
    times: list[float] = []

    def busy(body: dict[str, Any], headers: Any) -> Reply:
        times.append(time.monotonic())
        if len(times) == 1:
            return 503, {"error": "The queue is full."}, {"Retry-After": "1"}
        return 200, answer(body, told.model), {}

    told.predict = busy
    visit(browser, told)
    wait(browser, "return !document.getElementById('notice').hidden")
    assert "busy" in text(browser, "notice")
    settled(browser)
    assert times[1] - times[0] > 0.9  # not before the second that the server asked for
    assert not browser.find_element("id", "notice").is_displayed()


def test_a_server_that_was_stopped_gets_a_sentence_and_nothing_is_lost(browser: Any):
    with telling() as server:
        visit(browser, server)
        settled(browser)
    browser.find_elements("css selector", "#sample-list button")[1].click()
    wait(browser, "return !document.getElementById('notice').hidden")
    assert "The server does not answer." in text(browser, "notice")
    assert browser.find_element("id", "again").is_displayed()
    assert len(browser.find_elements("css selector", "#history button")) == 1
    # No number stands beside an image that it does not belong to; the first image's are still to be had.
    assert browser.find_elements("css selector", "#bars li") == []
    browser.find_element("css selector", "#history button").click()
    assert len(browser.find_elements("css selector", "#bars li")) == 10


def test_a_refusal_is_shown_as_its_sentence_and_the_next_answer_removes_it(browser: Any, told: Told):
    visit(browser, told)
    settled(browser)
    told.predict = lambda body, headers: (422, {"error": "The image cannot be decoded."}, {})
    browser.find_elements("css selector", "#sample-list button")[1].click()
    wait(browser, "return !document.getElementById('notice').hidden")
    assert text(browser, "notice").strip() == "The image cannot be decoded."
    told.predict = lambda body, headers: (200, answer(body, told.model), {})
    browser.find_elements("css selector", "#sample-list button")[2].click()
    wait(browser, "return document.getElementById('notice').hidden")


def test_an_answer_that_comes_late_does_not_replace_that_of_the_image_chosen_since(browser: Any, told: Told):
    visit(browser, told)
    settled(browser)
    gate = threading.Event()
    shown = "return document.querySelector('#says b')?.textContent === arguments[0]"

    def slow(body: dict[str, Any], headers: Any) -> Reply:
        samples = [example["image"] for example in told.model["examples"]]
        label = 20 + samples.index(body["images"][0]) if body["images"][0] in samples else 30
        if label in (21, 30):
            gate.wait(20)
        return 200, answer(body, told.model, label), {}

    told.predict = slow
    buttons = browser.find_elements("css selector", "#sample-list button")
    # Of samples chosen in a hurry the last is answered, whatever happens to the first.
    browser.execute_script("arguments[0].forEach(button => button.click())", buttons[1:])
    wait(browser, shown, CLASSES[23])
    # A file's answer comes late: it is kept, but not shown.
    browser.execute_script(
        "const data = new DataTransfer(), bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0));"
        "data.items.add(new File([bytes], 'late.png', { type: 'image/png' }));"
        "document.body.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true }))",
        picture(250, side=50).split(",")[1],
    )
    wait(browser, "return document.getElementById('answer').ariaBusy === 'true'")
    buttons[2].click()
    wait(browser, shown, CLASSES[22])
    gate.set()
    wait(browser, "return document.getElementById('history').innerText.includes('late.png')")
    assert browser.execute_script(shown, CLASSES[22])
    assert CLASSES[22] in browser.find_element("css selector", "#history [aria-current]").text


def test_while_a_slider_moves_only_the_latest_place_is_asked_for(browser: Any, told: Told):
    visit(browser, told)
    settled(browser)
    told.asked.clear()
    gate = threading.Event()

    def held(body: dict[str, Any], headers: Any) -> Reply:
        gate.wait(5)
        return 200, answer(body, told.model), {}

    told.predict = held
    browser.execute_script(
        "const s = document.getElementById('noise-slider');"
        "for (let v = 1; v <= 40; v++) { s.value = v / 100; s.dispatchEvent(new Event('input')) }"
    )
    time.sleep(0.2)
    gate.set()
    wait(browser, "return !document.getElementById('rotation').classList.contains('stale')")
    single = [body["noise"] for body in told.asked if not isinstance(body["noise"], list)]
    assert single == [0.01, 0.4]


def test_a_file_that_is_too_large_or_no_image_is_refused_before_it_is_sent(browser: Any, told: Told):
    visit(browser, told)
    settled(browser)
    told.asked.clear()
    for size, kind, words in ((90_000, "image/png", "at most 0.1 MB"), (10, "text/plain", "is not an image")):
        browser.execute_script(
            "const data = new DataTransfer();"
            "data.items.add(new File([new Uint8Array(arguments[0])], 'one.file', { type: arguments[1] }));"
            "const event = new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true });"
            "document.body.dispatchEvent(event)",
            size,
            kind,
        )
        wait(browser, "return document.getElementById('notice').textContent.includes(arguments[0])", words)
        assert "one.file" in text(browser, "notice")
    assert told.asked == []


def test_a_network_without_draws_says_so(browser: Any, told: Told):
    told.tell(inference="frequentist")

    def certain(body: dict[str, Any], headers: Any) -> Reply:
        given = answer(body, told.model)
        for prediction in given["predictions"]:
            prediction["epistemic"] = 0
        return 200, given, {}

    told.predict = certain
    told.model["validation"]["epistemic"] = [0] * 101
    visit(browser, told)
    settled(browser)
    assert "epistemic" not in browser.find_element("css selector", "#noise .summary").text
    assert "always 0" in browser.find_element("css selector", "#noise svg").text
    assert "only one set of weights" in browser.find_element("id", "epistemic").text
    assert not browser.find_element("id", "redraw").is_displayed()
    assert told.asked[0]["samples"] == 1


def test_moments_are_asked_for_without_draws(browser: Any, told: Told):
    told.tell(methods=["weights", "moments"])
    visit(browser, told)
    settled(browser)
    told.asked.clear()
    browser.execute_script(
        "const s = document.getElementById('way'); s.value = 'moments'; s.dispatchEvent(new Event('change'))"
    )
    wait(browser, "return document.querySelectorAll('#bars circle').length === 0")
    settled(browser)
    assert {(body["method"], body.get("samples"), body.get("draws", False)) for body in told.asked} == {
        ("moments", None, False)
    }
    assert "instead of draws" in text(browser, "bars-words")
    assert not browser.find_element("id", "redraw").is_enabled()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(browser: Any, told: Told, theme: str):
    visit(browser, told)
    prefer(browser, theme)
    settled(browser)
    found = browser.execute_script(CONTRASTS)
    assert len(found) > 40
    assert [item for item in found if item[1] < 4.5] == []


CONTRASTS = """
const luminance = rgb => rgb.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const parse = css => css.match(/[\\d.]+/g).map(Number);
const behind = element => {
  for (; element; element = element.parentElement) {
    const [r, g, b, a = 1] = parse(getComputedStyle(element).backgroundColor);
    if (a > 0) return [r, g, b];
  }
  return [255, 255, 255];
};
const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, style = getComputedStyle(element);
  if (!walker.currentNode.textContent.trim() || !element.checkVisibility({ visibilityProperty: true })) continue;
  if (element.closest('.hidden, :disabled, .stretch, select')) continue;
  const ink = parse(element.namespaceURI.endsWith('svg') ? style.fill : style.color).slice(0, 3);
  const [a, b] = [luminance(ink), luminance(behind(element))].sort((x, y) => y - x);
  found.push([walker.currentNode.textContent.trim().slice(0, 40), (a + .05) / (b + .05)]);
}
return found;
"""


def test_the_decision_comes_first_and_rates_of_false_alarms_are_stated(browser: Any, told: Told):
    visit(browser, told)
    settled(browser)
    assert text(browser, "decision") == "No rule yet. Fit one with: dubito decide RUN --max-error 0.01"
    assert not browser.find_element("id", "novelty").is_displayed()
    alarms = {"ambiguous": 0.05, "undecided": 0.05, "unfamiliar": 0.01}
    told.tell(decision="Review 5 % of images.", validation={**model()["validation"], "alarms": alarms})
    plain = told.predict

    def decided(body: dict[str, Any], headers: Any) -> Any:
        status, content, extra = plain(body, headers)
        added = {"decision": "unfamiliar", "reason": "unlike the training images"}
        novelty = {"value": 3.0, "percentile": 0.87, "score": "neighbours"}
        parts = [{**one, **added, "novelty": novelty} for one in content["predictions"]]
        return status, {**content, "predictions": parts, "warning": "By 2 draws, more can be wrong."}, extra

    told.predict = decided
    visit(browser, told)
    settled(browser)
    said = ["Refuse as unfamiliar: unlike the training images", "By 2 draws, more can be wrong."]
    assert text(browser, "decision").splitlines() == said
    assert text(browser, "rates") == (
        "The rule: Review 5 % of images. The sentence above calls 5 % of usual images ambiguous, 5 % undecided, "
        "1 % unlike the training images."
    )
    above = "return document.getElementById(arguments[0]).getBoundingClientRect().top"
    assert browser.execute_script(above, "decision") < browser.execute_script(above, "says")
    meter = browser.find_element("css selector", "#novelty .meter")
    assert meter.get_attribute("aria-valuenow") == "87"
    assert "more unlike the training images than 87 %" in text(browser, "novelty").lower()
