"""The report in a real browser: Debian's chromium without a window, driven by selenium.

Where there is no chromium these tests are skipped; with CI=true they fail instead.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reported_runs import shared
from test_report import FIGURES, SECTIONS
from tests.browser import browsing, color, prefer, screen


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from browsing(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared(tmp_path_factory)[1]


@pytest.fixture
def opened(browser: Any, file: Path) -> Any:
    """The browser at 1280 pixels and in the light theme, with the report."""
    screen(browser, 1280)
    prefer(browser, "light")
    browser.get(file.as_uri())
    browser.execute_script("localStorage.clear()")
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # empties it
    browser.refresh()
    return browser


def shine(css: str) -> int:
    """How bright a colour like rgb(1, 2, 3) is."""
    return sum(int(part) for part in css[css.index("(") + 1 : -1].split(",")[:3])


def requests(browser: Any) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def hover(browser: Any, index: int) -> None:
    """Move the mouse to a point of the scatter plot."""
    from selenium.webdriver import ActionChains

    canvas = browser.find_element("id", "scatter")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
    x, y = browser.execute_script("return arguments[0].placeOf(arguments[1])", canvas, index)
    size = canvas.size
    move = ActionChains(browser, duration=50)
    move.move_to_element_with_offset(canvas, round(x - size["width"] / 2), round(y - size["height"] / 2)).perform()


def test_no_console_message_and_no_request_to_the_network(opened: Any):
    hover(opened, 0)
    opened.find_element("id", "theme").click()
    assert opened.get_log("browser") == []
    urls = requests(opened)
    assert urls
    assert [url for url in urls if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in urls) == 1


def test_every_section_and_figure_is_seen(opened: Any):
    for name in SECTIONS:
        assert opened.find_element("id", name).is_displayed()
    for name in FIGURES:
        figure = opened.find_element("id", f"figure-{name}")
        assert figure.is_displayed()
        assert figure.size["width"] > 200
        assert figure.size["height"] > 150
    assert all(image.get_property("naturalWidth") == 32 for image in opened.find_elements("css selector", ".item img"))


def test_svg_figures_have_visible_ink(opened: Any):
    drawn = opened.execute_script(
        "return [...document.querySelectorAll('figure > svg')].map(svg => [svg.querySelectorAll('path, use').length, "
        "svg.getBoundingClientRect().width, getComputedStyle(svg.querySelector('text')).fill])"
    )
    assert len(drawn) == len(FIGURES) - 4  # the scatter plot is a canvas, the galleries are HTML
    assert all(paths > 5 and width > 200 and fill == color(opened, "body", "color") for paths, width, fill in drawn)


def test_the_scatter_plot_shows_the_image_of_the_point_under_the_mouse(opened: Any):
    tip = opened.find_element("id", "tip")
    assert not tip.is_displayed()
    wanted = opened.execute_script(
        "const d = JSON.parse(document.getElementById('scatter-data').textContent);"
        "return d.epistemic.indexOf(Math.max(...d.epistemic))"
    )
    hover(opened, wanted)
    assert tip.is_displayed()
    assert tip.get_attribute("data-index") == str(wanted)
    assert "epistemic" in tip.text
    painted = opened.execute_script(
        "const c = document.querySelector('#tip canvas');"
        "return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].filter((v, i) => i % 4 == 0)"
    )
    assert len(set(painted)) > 3


def test_the_scatter_plot_can_be_walked_through_with_the_keyboard(opened: Any):
    canvas, tip = opened.find_element("id", "scatter"), opened.find_element("id", "tip")
    canvas.send_keys("\ue014")  # right
    first = tip.get_attribute("data-index")
    canvas.send_keys("\ue014")
    assert tip.get_attribute("data-index") != first
    canvas.send_keys("\ue00c")  # escape
    assert not tip.is_displayed()


def test_groups_of_the_scatter_plot_can_be_hidden(opened: Any):
    for box in opened.find_elements("css selector", "[data-group]"):
        box.click()
    hover(opened, 0)
    assert not opened.find_element("id", "tip").is_displayed()


def test_the_theme_follows_the_system_and_the_button(opened: Any):
    assert shine(color(opened)) > 700 > 300 > shine(color(opened, "body", "color"))
    prefer(opened, "dark")
    assert shine(color(opened)) < 100 < 600 < shine(color(opened, "body", "color"))
    assert shine(color(opened, "figure svg text", "fill")) > 600
    button = opened.find_element("id", "theme")
    button.click()
    assert shine(color(opened)) > 700
    opened.refresh()
    assert shine(color(opened)) > 700  # it is remembered
    opened.find_element("id", "theme").click()
    assert shine(color(opened)) < 100


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_scrolls_sideways(opened: Any, width: int):
    screen(opened, width)
    whole, seen = opened.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert whole <= seen == width


def test_it_prints_on_white_with_everything_unfolded(opened: Any):
    prefer(opened, "dark")
    pdf = opened.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    assert len(pdf) > 50_000
    assert shine(color(opened)) < 100  # and the page is as it was
