"""The page in a real browser before a real server: Debian's chromium without a window, driven by selenium.

Where there is no chromium these tests are skipped; with CI=true they fail instead.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.browser import browsing, color, prefer, screen

pytestmark = pytest.mark.browser

SEVEN = ((-0.25, -0.3), (0.25, -0.32), (0.02, 0.0), (-0.05, 0.3))
"""A seven, in sides of the pad from its middle."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from browsing(tmp_path_factory.mktemp("profile"))


@pytest.fixture
def page(browser: Any, server: Any) -> Any:
    """The browser at 1280 pixels and in the light theme, with the page and the first sample's answer."""
    enter(browser, server.url)
    settled(browser)
    return browser


def enter(browser: Any, url: str) -> None:
    """Open the page at 1280 pixels and in the light theme, as one who has never been there."""
    screen(browser, 1280)
    prefer(browser, "light")
    browser.get(f"{url}/static/theme.js")
    browser.execute_script("localStorage.clear(); sessionStorage.clear()")
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # empties it
    browser.get(f"{url}/")


def shine(css: str) -> int:
    """How bright a colour like rgb(1, 2, 3) is."""
    return sum(int(part) for part in css[css.index("(") + 1 : -1].split(",")[:3])


def text(browser: Any, name: str) -> str:
    return browser.execute_script("return document.getElementById(arguments[0]).innerText", name).replace("\u00a0", " ")


def wait(browser: Any, script: str, *arguments: Any, seconds: float = 60) -> Any:
    """Until a script gives something true."""
    end = time.monotonic() + seconds
    while not (value := browser.execute_script(script, *arguments)):
        assert time.monotonic() < end, f"not within {seconds} s: {script}"
        time.sleep(0.02)
    return value


def settled(browser: Any) -> None:
    """Until the answer and both curves of the image that is looked at are there."""
    wait(
        browser,
        "return document.querySelectorAll('path.curve').length === 4"
        " && document.querySelector('#history [aria-current]')"
        " && !document.querySelector('.curves .stale, .curves .empty, [aria-busy=true]')",
    )


def predict(server: Any, image: str, **options: Any) -> dict[str, Any]:
    """What the server answers to a program."""
    body = json.dumps({"images": [image], "method": "weights", "per_class": True, "draws": True, "seed": 0, **options})
    request = urllib.request.Request(f"{server.url}/predict", body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["predictions"][0]


def model(server: Any) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.url}/model", timeout=60) as response:
        return json.load(response)


def rows(browser: Any, name: str) -> list[float]:
    """A number that belongs to each class's bar."""
    return browser.execute_script(
        f"return [...document.querySelectorAll('#bars li')].map(row => Number(row.dataset.{name}))"
    )


def history(browser: Any) -> list[Any]:
    return browser.find_elements("css selector", "#history button")


def draw(browser: Any, points: tuple[tuple[float, float], ...] = SEVEN) -> None:
    """A stroke with the mouse."""
    from selenium.webdriver import ActionChains

    pad = browser.find_element("id", "pad")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", pad)
    side = pad.size["width"]
    places = [(round(x * side), round(y * side)) for x, y in points]
    move = ActionChains(browser, duration=30).move_to_element_with_offset(pad, *places[0]).click_and_hold()
    for (x0, y0), (x1, y1) in itertools.pairwise(places):
        move.move_by_offset(x1 - x0, y1 - y0)
    move.release().perform()


def slide(browser: Any, name: str, value: float) -> None:
    browser.execute_script(
        "const slider = document.getElementById(`${arguments[0]}-slider`);"
        "slider.value = arguments[1]; slider.dispatchEvent(new Event('input'))",
        name,
        value,
    )


def until_drawn(browser: Any) -> str:
    """Until a drawing is answered: what the network saw of it."""
    wait(browser, "return document.querySelector('#history [aria-current]')?.innerText.includes('drawing')")
    settled(browser)
    return seen(browser)


def seen(browser: Any) -> str:
    return browser.find_element("id", "seen").get_attribute("src")


def pixels(url: str) -> list[list[int]]:
    with Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))) as picture:
        gray = picture.convert("L")
        width, height = gray.size
        values = list(gray.tobytes())
    return [values[row * width : (row + 1) * width] for row in range(height)]


def png(side: int = 40, red: int = 200) -> bytes:
    file = io.BytesIO()
    picture = Image.new("RGB", (side, side), (0, 0, 0))
    picture.paste((red, 255, 255), (side // 2 - 3, 4, side // 2 + 3, side - 4))
    picture.save(file, "png")
    return file.getvalue()


def requests(browser: Any) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def test_numbers_of_a_sample_are_those_of_the_api(page: Any, server: Any):
    described = model(server)
    example = described["examples"][-1]
    page.find_elements("css selector", "#sample-list button")[-1].click()
    wait(page, "return document.querySelectorAll('#history button').length === 2")
    settled(page)
    expected = predict(server, example["image"])
    assert rows(page, "probability") == pytest.approx(list(expected["probabilities"].values()), abs=1e-6)
    assert rows(page, "std") == pytest.approx(expected["per_class"]["std"], abs=1e-6)
    dots = page.execute_script(
        "return [...document.querySelectorAll('#bars li')].map(row => [...row.querySelectorAll('circle')]"
        ".map(dot => parseFloat(dot.getAttribute('cx')) / 100))"
    )
    draws = [list(column) for column in zip(*expected["draws"], strict=True)]
    assert [value for row in dots for value in row] == pytest.approx([v for row in draws for v in row], abs=1e-4)
    assert expected["label"] in text(page, "says")
    assert expected["verdict"]["sentence"] in text(page, "sentence")
    for kind in ("aleatoric", "epistemic"):
        place = page.find_element("id", kind)
        assert float(place.get_attribute("data-value")) == pytest.approx(expected[kind], rel=1e-5)
        share = round(100 * expected["percentile"][kind])
        assert f"{share} %" in place.text or "nearly all" in place.text
        assert f"{described['validation']['images']:,}" in place.text


def test_the_model_its_accuracy_and_the_draws_are_named(page: Any, server: Any):
    described = model(server)
    about = text(page, "about")
    assert described["name"] in about
    assert f"{100 * described['validation']['accuracy']:.1f} %" in about
    assert f"{described['samples']} draws" in text(page, "bars-words")
    for kind in ("aleatoric", "epistemic"):
        place = page.find_element("id", kind)
        assert f"of {described['validation']['images']} validation images are less doubtful" in place.text
        assert "variance of the label" not in place.text
        place.find_element("css selector", "summary").click()
        assert "variance of the label" in place.text
        place.find_element("css selector", "summary").click()


def test_a_drawn_digit_is_answered_as_the_training_images_look(page: Any, server: Any):
    draw(page)
    image = until_drawn(page)
    ink = pixels(image)
    assert len(ink) == len(ink[0]) == 32
    assert max(map(max, ink)) > 200
    assert max(ink[0]) > 60 < max(ink[-1])  # digits of this data set fill their image from top to bottom
    assert max(row[0] for row in ink) == max(row[-1] for row in ink) == 0  # and not its sides
    expected = predict(server, image)
    assert rows(page, "probability") == pytest.approx(list(expected["probabilities"].values()), abs=1e-6)
    assert "drawing" in history(page)[0].text


def test_a_drawing_does_not_depend_on_where_and_how_large_it_is(page: Any):
    draw(page)
    large = pixels(until_drawn(page))
    page.find_element("id", "clear").click()
    draw(page, tuple((0.2 + x / 2, 0.2 + y / 2) for x, y in SEVEN))
    small = pixels(until_drawn(page))
    difference = [abs(a - b) for one, other in zip(large, small, strict=True) for a, b in zip(one, other, strict=True)]
    assert sum(difference) / len(difference) < 6
    assert sum(map(sum, large)) / len(difference) > 30


def test_undo_and_clear_take_strokes_back(page: Any):
    draw(page)
    one = until_drawn(page)
    draw(page, ((-0.2, 0.1), (0.2, 0.1)))
    wait(page, "return document.getElementById('seen').src !== arguments[0]", one)
    page.find_element("id", "undo").click()
    wait(page, "return document.getElementById('seen').src === arguments[0]", one)
    page.find_element("id", "clear").click()
    assert text(page, "says") == "Nothing yet"
    assert page.find_elements("css selector", "#bars [data-probability], #bars circle") == []
    assert not page.find_element("id", "undo").is_enabled()


def test_a_finger_draws_and_does_not_scroll(page: Any):
    screen(page, 390, 844)
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    left, top, side, scrolled = page.execute_script(
        "const pad = document.getElementById('pad'); pad.scrollIntoView({ block: 'start', behavior: 'instant' });"
        "const { left, top, width } = pad.getBoundingClientRect(); return [left, top, width, scrollY]"
    )
    for step in range(9):
        point = {"x": left + side / 2, "y": top + side * (0.9 - 0.1 * step)}
        kind = "touchMove" if step else "touchStart"
        page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [point]})
    page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    ink = pixels(until_drawn(page))
    assert min(row[16] for row in ink) > 60  # a stroke from top to bottom
    assert page.execute_script("return scrollY") == scrolled


DROP = """
const data = new DataTransfer(), bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0));
data.items.add(new File([bytes], arguments[2], { type: 'image/png' }));
const event = arguments[1] === 'drop' ? new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })
  : new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true });
document.body.dispatchEvent(event);
"""


@pytest.mark.parametrize("way", ["drop", "paste", "choose"])
def test_an_image_is_dropped_pasted_or_chosen(page: Any, server: Any, tmp_path: Path, way: str):
    content = png()
    if way == "choose":
        file = tmp_path / "bar.png"
        file.write_bytes(content)
        page.find_element("id", "file").send_keys(str(file))
    else:
        page.execute_script(DROP, base64.b64encode(content).decode(), way, "bar.png")
    wait(page, "return document.querySelector('#history [aria-current]')?.innerText.includes('bar.png')")
    settled(page)
    expected = predict(server, base64.b64encode(content).decode(), preview=True)
    assert seen(page) == expected["preview"]
    assert rows(page, "probability") == pytest.approx(list(expected["probabilities"].values()), abs=1e-6)


def test_several_files_are_all_shown_and_the_bad_ones_told(page: Any):
    page.execute_script(
        "const data = new DataTransfer(), bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0));"
        "for (const name of ['a.png', 'b.png', 'fake.png', 'c.png'])"
        "  data.items.add(new File([name === 'fake.png' ? 'no image' : bytes], name, { type: 'image/png' }));"
        "document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }))",
        base64.b64encode(png()).decode(),
    )
    notice = wait(
        page,
        "const n = document.getElementById('notice'); return !n.hidden && n.innerText.includes('fake') && n.innerText",
    )
    assert notice.startswith("fake.png: ")
    shown = page.execute_script("return document.getElementById('history').innerText")
    assert all(name in shown for name in ("a.png", "b.png", "c.png"))
    assert "fake.png" not in shown


def test_a_file_that_is_no_image_gets_the_servers_sentence_and_leaves_no_trace(page: Any):
    before = len(history(page))
    page.execute_script(DROP, base64.b64encode(b"no image at all").decode(), "drop", "fake.png")
    notice = wait(page, "const n = document.getElementById('notice'); return !n.hidden && n.innerText")
    assert notice.strip().endswith(".")
    assert len(history(page)) == before
    page.find_elements("css selector", "#sample-list button")[0].click()
    wait(page, "return document.getElementById('notice').hidden")


def test_sliders_change_the_image_and_the_curves_show_what_the_api_answers(page: Any, server: Any):
    example = model(server)["examples"][0]["image"]
    clean = seen(page)
    slide(page, "noise", 0.3)
    slide(page, "rotation", 45)
    wait(page, "return document.getElementById('seen').src !== arguments[0]", clean)
    settled(page)
    expected = predict(server, example, noise=0.3, rotation=45, preview=True)
    assert seen(page) == expected["preview"]
    assert rows(page, "probability") == pytest.approx(list(expected["probabilities"].values()), abs=1e-6)
    assert page.find_element("css selector", "#noise output").text == "0.30"
    assert page.find_element("css selector", "#rotation output").text == "45°"
    for name, share in (("noise", 0.6), ("rotation", 225 / 360)):
        # The marker stands over the slider's thumb, and on the curve.
        marker, width, path = page.execute_script(
            "const svg = document.querySelector(`#${arguments[0]} svg`), dot = svg.querySelector('circle.now');"
            "return [[dot.cx.baseVal.value, dot.cy.baseVal.value], svg.clientWidth,"
            " svg.querySelector('.curve').getAttribute('d')]",
            name,
        )
        assert marker[0] == pytest.approx(11 + share * (width - 22), abs=0.5)
        points = [tuple(map(float, pair.split())) for pair in path[1:].split("L")]
        assert min(abs(x - marker[0]) + abs(y - marker[1]) for x, y in points) < 0.2
    assert "noise 0.30" in history(page)[0].text
    page.find_element("id", "reset").click()
    wait(page, "return document.getElementById('seen').src === arguments[0]", clean)


def test_the_heights_of_a_curve_are_the_uncertainties(page: Any, server: Any):
    image = model(server)["examples"][0]["image"]
    path = page.execute_script("return document.querySelector('#noise .curve.epistemic').getAttribute('d')")
    heights = [158 - float(pair.split()[1]) for pair in path[1:].split("L")]
    grid = [round(0.025 * step, 4) for step in range(21)]
    body = {"images": [image], "method": "weights", "seed": 0, "samples": 10}
    turned = [15.0 * step - 180 for step in range(25)]
    data = json.dumps({**body, "noise": grid + [0] * 25, "rotation": [0] * 21 + turned}).encode()
    request = urllib.request.Request(f"{server.url}/predict", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        values = [prediction["epistemic"] for prediction in json.load(response)["predictions"][:21]]
    largest = max(range(1, 21), key=lambda i: values[i])
    for i in range(1, 21):
        assert heights[i] / heights[largest] == pytest.approx(values[i] / values[largest], abs=0.02)


def test_the_history_goes_back_to_an_image_and_keeps_copies(page: Any):
    first = rows(page, "probability")
    page.find_elements("css selector", "#sample-list button")[-1].click()
    wait(page, "return document.querySelectorAll('#history button').length === 2")
    settled(page)
    second = rows(page, "probability")
    assert second != first
    history(page)[1].click()
    assert rows(page, "probability") == first
    assert history(page)[1].get_attribute("aria-current") == "true"
    page.find_element("id", "keep").click()
    assert len(history(page)) == 3
    slide(page, "noise", 0.5)
    wait(page, "return document.querySelector('#history [aria-current]').innerText.includes('noise 0.50')")
    assert sum("noise" in button.text for button in history(page)) == 1  # the other copy stayed
    page.find_element("id", "forget").click()
    assert len(history(page)) == 1


def test_more_draws_make_more_dots_and_new_draws_other_numbers(page: Any):
    page.execute_script(
        "const s = document.getElementById('way'); s.value = 'weights:30'; s.dispatchEvent(new Event('change'))"
    )
    wait(page, "return document.querySelector('#bars li').querySelectorAll('circle').length === 30")
    assert "30 draws" in text(page, "bars-words")
    before = rows(page, "probability")
    page.find_element("id", "redraw").click()
    wait(
        page, "return Number(document.querySelector('#bars .chosen').dataset.probability) !== arguments[0]", max(before)
    )


def test_everything_can_be_done_with_the_keyboard(page: Any):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys: str) -> None:
        ActionChains(page, duration=0).send_keys(*keys).perform()

    def focused() -> str:
        return page.execute_script("const e = document.activeElement; return e.id || e.closest('[id]')?.id")

    page.execute_script("document.body.focus()")
    reached = []
    for _ in range(40):
        press(Keys.TAB)
        reached.append(focused())
        outline = page.execute_script(
            "const e = document.activeElement;"
            "return getComputedStyle(e.type === 'file' ? e.parentElement : e).outlineStyle"
        )
        assert outline != "none", f"{reached[-1]} shows no focus"
        if reached[-1] == "history":
            break
    for name in (
        "theme",
        "pad",
        "clear",
        "file",
        "sample-list",
        "way",
        "redraw",
        "noise-slider",
        "rotation-slider",
        "history",
    ):
        assert name in reached
    page.execute_script("document.getElementById('pad').focus()")
    # Space puts the pen down in the middle; the arrows draw a one; space lifts it.
    press(" ", *[Keys.ARROW_DOWN] * 6, *[Keys.ARROW_UP] * 12, " ", Keys.ARROW_LEFT)
    ink = pixels(until_drawn(page))
    assert min(row[16] for row in ink) > 60
    slider = page.find_element("id", "noise-slider")
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert slider.get_attribute("aria-valuetext").endswith("= 0.02")
    wait(page, "return document.querySelector('#history [aria-current]').innerText.includes('noise 0.02')")
    history(page)[1].send_keys(Keys.ENTER)
    wait(page, "return document.querySelectorAll('#history button')[1].ariaCurrent === 'true'")


def test_the_verdict_is_told_to_screen_readers(page: Any):
    told = wait(page, "return document.getElementById('status').textContent")
    assert page.find_element("id", "status").get_attribute("aria-live") == "polite"
    assert "epistemic uncertainty" in told
    unnamed = page.execute_script(
        "return [...document.querySelectorAll('button, select, input, canvas, svg[role=img]')]"
        ".filter(e => e.checkVisibility() && !(e.innerText?.trim() || e.ariaLabel || e.labels?.length))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert unnamed == []


def test_nothing_scrolls_sideways_and_everything_can_be_hit(page: Any):
    for width in (320, 390, 768, 1280):
        screen(page, width)
        whole, inner = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert whole <= inner == width
        small = page.execute_script(
            "return [...document.querySelectorAll('button, select, input, .button, canvas')]"
            ".filter(e => e.checkVisibility())"
            ".map(e => [e.id || e.outerHTML.slice(0, 60), e.getBoundingClientRect()])"
            ".filter(([, box]) => Math.min(box.width, box.height) < 40).map(([name]) => name)"
        )
        assert small == []


def test_on_a_phone_the_answer_is_in_sight_while_drawing(page: Any):
    screen(page, 390, 844)
    page.execute_script("scrollTo(0, 0)")
    draw(page)
    until_drawn(page)
    assert page.execute_script("return document.getElementById('sentence').getBoundingClientRect().bottom") < 844


def test_the_theme_follows_the_system_and_the_button(page: Any):
    assert shine(color(page)) > 700 > 300 > shine(color(page, "body", "color"))
    prefer(page, "dark")
    assert shine(color(page)) < 100 < 600 < shine(color(page, "body", "color"))
    assert shine(color(page, "#noise svg text", "fill")) > 400
    page.find_element("id", "theme").click()
    assert shine(color(page)) > 700
    page.refresh()
    assert shine(color(page)) > 700  # it is remembered


def test_no_console_message_and_no_request_to_elsewhere(page: Any, server: Any):
    draw(page)
    until_drawn(page)
    page.find_element("id", "theme").click()
    assert page.get_log("browser") == []
    urls = requests(page)
    assert f"{server.url}/predict" in urls
    assert [url for url in urls if not url.startswith((f"{server.url}/", "data:"))] == []


def test_reduced_motion_is_respected(page: Any):
    for wish, moves in (("reduce", False), ("no-preference", True)):
        feature = {"name": "prefers-reduced-motion", "value": wish}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        assert (color(page, ".meter b", "transitionDuration") != "0s") is moves


def test_a_server_that_is_gone_gets_a_sentence_and_one_that_is_back_an_answer(page: Any):
    page.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    try:
        draw(page)
        notice = wait(page, "const n = document.getElementById('notice'); return !n.hidden && n.innerText")
        assert "The server does not answer." in notice
    finally:
        page.execute_cdp_cmd("Network.emulateNetworkConditions", {**offline, "offline": False})
    page.find_element("id", "again").click()
    until_drawn(page)
    assert not page.find_element("id", "notice").is_displayed()
