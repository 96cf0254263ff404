"""What the page of `dubito serve` says of unfamiliar and of ambiguous images, as two sheets of screenshots.

    python -m benchmarks.page RUN [--other cifar10] [--images 10] [--out results/page]

Unfamiliar images are test images of other data sets; ambiguous ones are the run's own test images with the largest
aleatoric uncertainty among the first thousand. Each is given to the page in a browser (chromium and selenium), and the
part with the decision, the answer and the sentence is photographed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from dubito.data import normalize
from dubito.evaluation.images import own_test_images, test_images
from dubito.prediction import Predictor
from dubito.runs.run import Run

WIDTH, THUMBNAIL = 900, 96
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("run", type=Path, help="run folder")
    options.add_argument(
        "--other", nargs="+", default=["fashion-mnist", "cifar10"], help="data sets of unfamiliar images"
    )
    options.add_argument("--images", type=int, default=10, help="images of each kind")
    options.add_argument("--out", type=Path, default=Path("results/page"), help="folder of the sheets")
    given = options.parse_args()
    run = Run.open(given.run)
    each = -(-given.images // len(given.other))
    others = [test_images(name, run, labelled=False).images[torch.arange(each)] for name in given.other]
    kinds = {"unfamiliar": torch.cat(others)[: given.images], "ambiguous": ambiguous(run, given.images)}
    given.out.mkdir(parents=True, exist_ok=True)
    with serving(given.run) as url, browsing() as browser:
        for name, images in kinds.items():
            file = given.out / f"{name}.png"
            sheet(photographs(browser, url, images), images).quantize(32).save(file, optimize=True)
            print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def ambiguous(run: Run, count: int) -> Tensor:
    """Own test images with the largest aleatoric uncertainty."""
    images = own_test_images(run, None).images[torch.arange(1000)]
    prediction = Predictor(run)(normalize(images, run.data.mean, run.data.std))
    return images[prediction.aleatoric.argsort(descending=True)[:count]]


@contextmanager
def serving(run: Path) -> Iterator[str]:
    """The address of a server of the run, which is stopped afterwards."""
    command = [sys.executable, "-m", "dubito", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        found = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stdout)
        yield next(match[0] for match in found if match)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser") or ""
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={WIDTH},1200"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            yield browser
        finally:
            browser.quit()


def photographs(browser: Any, url: str, images: Tensor) -> list[Image.Image]:
    """The page's answer to each image."""
    made = []
    with tempfile.TemporaryDirectory() as folder:
        for number, image in enumerate(images):
            file = Path(folder) / f"{number}.png"
            picture(image).save(file)
            browser.get(url)
            _wait(browser, "return document.querySelectorAll('#history button').length > 0")
            browser.find_element("id", "file").send_keys(str(file))
            _wait(
                browser,
                "return document.querySelector('#history [aria-current]')?.innerText.includes(arguments[0])"
                " && !document.querySelector('[aria-busy=true]')",
                file.name,
            )
            section = browser.find_element("css selector", "#answer > section")
            shot = Path(folder) / "shot.png"
            section.screenshot(str(shot))
            with Image.open(shot) as taken:
                made.append(taken.convert("RGB"))
    return made


def _wait(browser: Any, script: str, *arguments: Any) -> None:
    end = time.monotonic() + 300
    while not browser.execute_script(script, *arguments):
        if time.monotonic() > end:
            raise SystemExit(f"The page did not get there: {script}")
        time.sleep(0.1)


def picture(image: Tensor) -> Image.Image:
    """Bytes (C, H, W) as an image."""
    pixels = image.permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def sheet(photos: list[Image.Image], images: Tensor) -> Image.Image:
    """Each image beside what the page says of it, one below the other."""
    heights = [max(photo.height, THUMBNAIL) + 16 for photo in photos]
    width = THUMBNAIL + 32 + max(photo.width for photo in photos)
    whole = Image.new("RGB", (width, sum(heights)), "white")
    top = 0
    for photo, image, height in zip(photos, images, heights, strict=True):
        whole.paste(
            picture(image).convert("RGB").resize((THUMBNAIL, THUMBNAIL), Image.Resampling.NEAREST), (8, top + 8)
        )
        whole.paste(photo, (THUMBNAIL + 24, top + 8))
        top += height
    return whole


if __name__ == "__main__":
    main()
