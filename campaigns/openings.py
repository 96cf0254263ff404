"""Everything that dubito opens: a folder of each kind, the file in it that strangers may have changed, and its opening.

The folders are made once, by dubito itself. An opening is what a user does with the folder: a command as it is typed,
or a call of the library.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from campaigns.handmade import notes
from campaigns.mutations import (
    Mutate,
    by_bytes,
    of_gzip,
    of_json,
    of_npz,
    of_onnx,
    of_png,
    of_safetensors,
    of_sizes,
    of_text,
    of_yaml,
)

__all__ = ["Kind", "command", "inside", "kinds", "pictures", "place_parts", "prepare"]

SIDES = (37, 53)
"""Width and height of the pictures: numbers that are found again in a header."""


@dataclass(frozen=True)
class Kind:
    """A kind of file that is opened.

    Attributes:
        name: what the table calls it.
        folder: the prepared folder that it is in.
        files: those in the folder that are changed, one in a case.
        open: what opens it, in a copy of the folder; it gets the name of the file.
        mutations: how the file is changed.
        heavy: whether it needs Lightning, which is as large as all else.
        follows: whether the file rightly names other files, or the folder other data.
        share: of all mutations; larger for what is quickly opened.
    """

    name: str
    folder: str
    files: tuple[str, ...]
    open: Callable[[str], object]
    mutations: tuple[Mutate, ...]
    heavy: bool = False
    follows: bool = False
    share: int = 1


# ---- openings ------------------------------------------------------------------------------------------------------


def command(*words: str) -> None:
    """A command as `dubito` runs it, whose exceptions are not caught."""
    _parser().main(list(words), "dubito", standalone_mode=False)


_PARSERS: list[Any] = []


def _parser() -> Any:
    """The parser of all commands, which takes a while to make."""
    import typer

    from dubito.cli import app

    if not _PARSERS:
        _PARSERS.append(typer.main.get_command(app))
    return _PARSERS[0]


def read_picture(name: str) -> None:
    """As data sets and predictions do it."""
    from dubito.data.images import inspect_image, read_image

    inspect_image(name)
    read_image(name, channels=3)
    read_image(name, channels=1, size=64, fit="pad")


def read_data(name: str) -> None:
    """A data set of the user's own, both splits."""
    from dubito.data import in_memory, open_dataset

    source = open_dataset(name)
    for part in (source.train(), source.test()):
        in_memory(part.images[:2])


def read_idx(name: str) -> None:
    """A file of the MNIST family."""
    from dubito.data.formats import read_idx_images, read_idx_labels

    read_idx_labels(name, 10) if "labels" in name else read_idx_images(name)


def read_cifar(name: str) -> None:
    """A file of the CIFAR family."""
    from dubito.data.formats import read_cifar, read_class_names

    read_class_names(name) if name.endswith(".txt") else read_cifar(name, 1, 10)


def read_settings(name: str) -> None:
    """A file of settings as `dubito train --config` takes it."""
    from dubito.runs.config import configure

    configure(file=name)


def predict(folder: str, *options: str) -> None:
    """`dubito predict`."""
    command("predict", folder, "picture.png", "--samples", "2", *options)


def predict_run(name: str) -> None:
    """A run, whichever file of it was changed."""
    predict(Path(name).parts[0])


def predict_calibrated(name: str) -> None:
    """A run with all that was fitted to its validation images."""
    predict("run", "--calibrated", "--conformal")


def decide(name: str) -> None:
    """A rule is fitted to the run's validation record."""
    command("decide", "run", "--review", "0.2")


def read_tables(name: str) -> None:
    """What a run tells of its training, as reports and resumed trainings read it."""
    from dubito.runs.run import Run
    from dubito.threads import same_threads

    run = Run.open("run")
    run.metrics()
    run.posterior_trace()
    with same_threads(run.environment()):
        pass


def compare(name: str) -> None:
    """Two evaluations compared, which are kept in the folders of their runs."""
    command("compare", "run", "run", "--samples", "2", "--bootstrap", "20")


def report(name: str) -> None:
    """A report of what is kept, but for its figures, which would take seconds a case."""
    from dubito.evaluation import style
    from dubito.evaluation.report import report as write

    style.draw = lambda paint, size: None  # type: ignore[assignment,misc]
    style.to_svg = lambda figure, name: '<svg viewBox="0 0 1 1"></svg>'  # type: ignore[assignment]
    style.to_png = lambda figure: b""  # type: ignore[assignment]
    write("run", out="report.html", figures="figures")


def predict_exported(name: str) -> None:
    """An exported network, which has its number of draws in it."""
    command("predict", name, "picture.png")


def predict_listed(name: str) -> None:
    """Images that a list or a table names or holds."""
    command("predict", "run", name, "--samples", "2")


def go_on_with_parts(name: str) -> None:
    """Predictions in parts that were begun."""
    command("predict", "run", "pictures", "--samples", "2", "--chunk", "2", "--out", "parts", "--resume")


def start_from(name: str) -> None:
    """Weights that a training starts from."""
    from dubito.models import build

    build("lenet5", in_channels=1, init=name)


def resume(name: str) -> None:
    """A training goes on for two steps."""
    import pytorch_lightning as pl
    from rich.console import Console

    from dubito import training

    class Enough(Exception):  # noqa: N818 - it is no error
        pass

    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            if not bool(outputs["loss"].isfinite()):
                raise AssertionError("the loss is not finite")
            if trainer.global_step >= 2:
                raise Enough

    try:
        quiet = Console(file=io.StringIO(), quiet=True)
        training.resume("stopped", console=quiet, callbacks=[Stop()])
    except Enough:
        pass


def load_checkpoint(name: str) -> None:
    """A checkpoint of a Trainer."""
    from dubito.training import Classifier

    Classifier.load_from_checkpoint(name)


# ---- what is opened ------------------------------------------------------------------------------------------------


def kinds(secret: str) -> tuple[Kind, ...]:
    """All kinds. `secret` is a file that none of them may open."""
    from dubito.exporting.description import KEY

    tensors = (of_safetensors(secret),)
    trees = (of_json(secret), of_json(secret), of_text, by_bytes)
    yaml = (of_yaml(secret), of_yaml(secret), of_text, by_bytes)
    texts = (of_text, of_text, by_bytes)
    images = [
        Kind(f"image {format_}", format_, tuple(files), read_picture, (by_bytes, of_sizes, of_png, by_bytes))
        for format_, files in pictures().items()
    ]
    arrays = ("gray.npz", "colour.npz", "split.npz")
    idx = ("images-ubyte.gz", "labels-ubyte.gz")
    in_run = {
        name: (f"run/{name}",) for name in ("config.yaml", "best.safetensors", "decision.json", "calibration.json")
    }
    ensemble = ("ensemble/config.yaml", "ensemble/members/1/config.yaml")
    tables = ("stopped/metrics.csv", "stopped/environment.json")
    quick = (
        *images,
        Kind("arrays .npz", "data", arrays, read_data, (of_npz,)),
        Kind("arrays IDX", "data", idx, read_idx, (of_gzip, of_gzip, by_bytes)),
        Kind("arrays CIFAR", "data", ("batch.bin", "names.txt"), read_cifar, (by_bytes,)),
        Kind("table of labels", "lists", ("labels.csv",), read_data, texts, follows=True),
        Kind("settings", "settings", ("settings.yaml", "preset.yaml"), read_settings, yaml),
        Kind("run: metrics", "run", ("run/metrics.csv", "run/posterior.csv"), read_tables, texts),
        Kind("run: environment", "run", ("run/environment.json",), read_tables, trees),
        Kind("initial weights", "initial", ("weights.safetensors",), start_from, tensors),
        Kind("initial weights of torch", "initial", ("weights.pt", "outer.pt"), start_from, (by_bytes,)),
    )
    predicted = (
        Kind("list of images", "lists", ("images.txt",), predict_listed, texts, follows=True),
        Kind("table of images", "lists", ("table.parquet", "paths.parquet"), predict_listed, (by_bytes,), follows=True),
        Kind("run: configuration", "run", in_run["config.yaml"], predict_run, yaml),
        Kind("run: weights", "run", in_run["best.safetensors"], predict_run, tensors),
        Kind("run: novelty", "run", ("run/novelty.safetensors",), predict_run, tensors),
        Kind("run: rule", "run", in_run["decision.json"], predict_run, trees),
        Kind("run: calibration", "run", in_run["calibration.json"], predict_calibrated, trees),
        Kind("run: pruned", "pruned", ("pruned/best.safetensors",), predict_run, tensors),
        Kind("run: ensemble", "ensemble", ensemble, predict_run, yaml),
        Kind("evaluation", "run", ("run/evaluation.safetensors",), compare, tensors, follows=True),
        Kind("evaluation, reported", "run", ("run/evaluation.safetensors",), report, tensors, follows=True),
        Kind("saved: description", "saved", SAVED, predict_run, trees),
        Kind("saved: tensors", "saved", SAVED_TENSORS, predict_run, tensors),
        Kind("exported", "exported", ("network.onnx",), predict_exported, (of_onnx(secret, KEY),)),
        Kind("parts: manifest", "parts", ("parts/manifest.json",), go_on_with_parts, trees),
        Kind("parts: a part", "parts", ("parts/part-00000000.parquet",), go_on_with_parts, (by_bytes,)),
    )
    slow = (
        Kind("run: validation", "run", ("run/validation.safetensors",), decide, tensors),
        Kind("run: Hugging Face", "hugging", ("hugging/network.json",), predict_run, trees, heavy=True),
        Kind("resume: state", "stopped", ("stopped/last.safetensors",), resume, tensors, True, True),
        Kind("resume: settings", "stopped", ("stopped/config.yaml",), resume, yaml, True, True),
        Kind("resume: tables", "stopped", tables, resume, texts, True, True),
        Kind("checkpoint of a Trainer", "checkpoint", ("network.ckpt",), load_checkpoint, (by_bytes,), True),
    )
    shares = ((quick, 4), (predicted, 2), (slow, 1))
    return tuple(replace(kind, share=share) for group, share in shares for kind in group)


SAVED = ("plain/network.json", "converted/network.json", "several/network.json", "plain/decision.json")
SAVED_TENSORS = ("plain/network.safetensors", "converted/network.safetensors", "plain/novelty.safetensors")


# ---- the folders ---------------------------------------------------------------------------------------------------


def pictures() -> dict[str, dict[str, bytes]]:
    """Pictures of every format and mode that is read, by format and file name."""
    from PIL import Image

    gray = Image.linear_gradient("L").resize(SIDES)
    colour = Image.merge(
        "RGB", (gray, gray.transpose(Image.Transpose.ROTATE_180), gray.point(lambda value: value // 2))
    )
    through = colour.copy()
    through.putalpha(gray)
    floats = Image.fromarray(np.asarray(gray, dtype=np.float32) / 255)
    modes = {"1": gray.convert("1"), "L": gray, "P": colour.quantize(40), "RGB": colour, "RGBA": through}
    modes |= {"I;16": gray.convert("I;16"), "F": floats, "CMYK": colour.convert("CMYK"), "LA": through.convert("LA")}
    turned = Image.Exif()
    turned[0x0112] = 6
    frames = {"save_all": True, "append_images": [colour.rotate(90), colour.rotate(45)]}
    wanted: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "PNG": [*((mode, {}) for mode in ("1", "L", "P", "RGB", "RGBA", "I;16", "LA")), ("RGB", {"exif": turned})],
        "JPEG": [("L", {}), ("RGB", {"exif": turned}), ("CMYK", {}), ("RGB", {"progressive": True})],
        "BMP": [(mode, {}) for mode in ("1", "L", "P", "RGB", "RGBA")],
        "GIF": [("P", {}), ("L", {"transparency": 3}), ("RGB", frames)],
        "WEBP": [("RGB", {}), ("RGBA", {"lossless": True}), ("RGB", frames), ("RGB", {"exif": turned})],
        "TIFF": [
            *((mode, {}) for mode in ("1", "L", "P", "RGBA", "I;16", "F", "CMYK")),
            *(("RGB", {"compression": name}) for name in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")),
        ],
        "PPM": [("1", {}), ("L", {}), ("RGB", {}), ("I;16", {}), ("F", {"format": "PFM"})],
    }
    return {
        format_: {
            f"{number}-{mode.replace(';', '-')}.{format_.lower()}": _saved(modes[mode], {"format": format_, **more})
            for number, (mode, more) in enumerate(which)
        }
        for format_, which in wanted.items()
    }


def _saved(picture: Any, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    if options["format"] == "PFM":
        options = {"format": "PPM"}
    picture.save(file, **options)
    return file.getvalue()


TRAIN = "train --model lenet5 --data digits --epochs {} --validation-samples 1"


def place_parts(folder: Path, place: Path) -> None:
    """The manifest of begun parts names their run by its path: let it be that of the place where they are opened."""
    manifest = folder / "parts" / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "run": os.path.realpath(place / "run")}, indent=2) + "\n")


def prepare(root: Path) -> None:
    """Make every folder in `root`."""
    for format_, files in pictures().items():
        (root / format_).mkdir()
        for name, content in files.items():
            (root / format_ / name).write_bytes(content)
    _prepare_data(root / "data")
    _prepare_runs(root)
    _prepare_settings(root / "settings")
    _prepare_lists(root)
    _prepare_saved(root)
    for folder in ("run", "pruned", "ensemble", "hugging", "saved", "exported", "lists", "parts"):
        (root / folder / "picture.png").write_bytes(pictures()["PNG"]["1-L.png"])


def _prepare_data(folder: Path) -> None:
    folder.mkdir()
    chance = np.random.default_rng(0)
    gray = chance.integers(0, 256, (20, 28, 28), dtype=np.uint8)
    labels = np.arange(20, dtype=np.uint8) % 2
    names = np.array(["cat", "dog"])
    np.savez(folder / "gray.npz", images=gray, labels=labels, class_names=names)
    colour = chance.random((20, 3, 16, 16), dtype=np.float32)
    np.savez_compressed(folder / "colour.npz", images=colour, labels=labels.astype(np.int64)[:, None])
    train, test = {"x_train": gray, "y_train": labels}, {"x_test": gray[:4], "y_test": labels[:4]}
    np.savez_compressed(folder / "split.npz", **train, **test)  # type: ignore[arg-type]
    header = np.array([0x803, 20, 28, 28], ">u4").tobytes()
    (folder / "images-ubyte.gz").write_bytes(gzip.compress(header + gray.tobytes()))
    (folder / "labels-ubyte.gz").write_bytes(gzip.compress(np.array([0x801, 20], ">u4").tobytes() + labels.tobytes()))
    records = chance.integers(0, 256, (6, 3073), dtype=np.uint8)
    records[:, 0] = range(6)
    (folder / "batch.bin").write_bytes(records.tobytes())
    (folder / "names.txt").write_text("airplane\nautomobile\nbird\n")


def _prepare_runs(root: Path) -> None:
    (root / "run" / "others").mkdir(parents=True)
    for number in range(3):
        (root / "run" / "others" / f"{number}.png").write_bytes(pictures()["PNG"]["1-L.png"])
    with inside(root / "run"):
        command(*TRAIN.format(2).split(), "--out", "run")
        command(*["decide", "run", "--review", "0.2", "--false-alarm", "0.05"])
        command(*["evaluate", "run", "--samples", "2", "--noise", "0,0.1", "--bootstrap", "20", "--ood", "others"])
    (root / "pruned").mkdir()
    with inside(root):
        command(*["prune", "run/run", "--sparsity", "0.6", "--samples", "2", "--out", "pruned/pruned"])
    for name, more in {"ensemble": "--members 2 --no-novelty", "stopped": "--seed 1"}.items():
        (root / name).mkdir()
        with inside(root / name):
            command(*TRAIN.format(1).split(), *more.split(), "--out", name)
    config = root / "stopped" / "stopped" / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 1", "epochs: 3"))
    notes("settings", "training", "epochs", value=3)(config.parent / "last.safetensors")  # as if it had been so
    _prepare_hugging(root / "hugging")


def _prepare_hugging(folder: Path) -> None:
    """A run of a small residual network of transformers."""
    folder.mkdir()
    tiny = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "num_channels": 1}
    (folder / "tiny").mkdir()
    (folder / "tiny" / "config.json").write_text(
        json.dumps({**tiny, "architectures": ["ResNetForImageClassification"]})
    )
    with inside(folder):
        command(*TRAIN.format(1).replace("lenet5", "hf:tiny").split(), "--no-novelty", "--out", "hugging")


def _prepare_settings(folder: Path) -> None:
    folder.mkdir()
    (folder / "settings.yaml").write_text(
        "model: alexnet\nepochs: 3\nlearning_rate: 0.001\naugment: false\nprior: 0.2\n"
    )
    shutil.copy(folder.parent / "run" / "run" / "config.yaml", folder / "preset.yaml")


def _prepare_lists(root: Path) -> None:
    """Lists and tables of pictures, and predictions in parts."""
    import pyarrow as arrow
    from pyarrow import parquet

    for name in ("lists", "parts"):
        shutil.copytree(root / "run", root / name)
        (root / name / "pictures").mkdir()
        for number in range(4):
            (root / name / "pictures" / f"{number}.png").write_bytes(pictures()["PNG"]["1-L.png"])
    lists = root / "lists"
    paths = [f"pictures/{number}.png" for number in range(4)]
    (lists / "images.txt").write_text("\n".join(paths) + "\n")
    with (lists / "labels.csv").open("w", newline="") as file:
        rows = [(path, label, split) for path in paths for label in "ab" for split in ("train", "test")]
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    content = [(lists / path).read_bytes() for path in paths]
    parquet.write_table(arrow.table({"image": content, "name": paths, "truth": list("0123")}), lists / "table.parquet")
    parquet.write_table(arrow.table({"path": paths}), lists / "paths.parquet")
    with inside(root / "parts"):
        command(*["predict", "run", "pictures", "--samples", "2", "--chunk", "2", "--out", "parts"])
        sorted(Path("parts").glob("part-*.parquet"))[-1].unlink()
    manifest = root / "parts" / "parts" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))


def _prepare_saved(root: Path) -> None:
    """Folders of dubito.save, an exported network, weights to start from and a Trainer's checkpoint."""
    import pytorch_lightning as pl
    import torch
    from safetensors.torch import save_file
    from torch.utils.data import DataLoader, TensorDataset

    import dubito
    from dubito.training import Classifier

    for name in ("saved", "exported", "initial", "checkpoint"):
        (root / name).mkdir()
    torch.manual_seed(0)
    run = root / "run" / "run"
    dubito.save(dubito.load(run), root / "saved" / "plain", predictor=dubito.Predictor(run, samples=2))
    plain = dubito.models.build("lenet5", in_channels=1, inference="frequentist")
    about: dict[str, Any] = {"class_names": [*"0123456789"], "size": 32, "mean": [0.3], "std": [0.3]}
    dubito.save(dubito.to_bayesian(plain, prior="fan_in"), root / "saved" / "converted", **about)
    dubito.save(dubito.load(root / "ensemble" / "ensemble"), root / "saved" / "several")
    with inside(root):
        command(*["export", "run/run", "--samples", "2", "--out", "exported/network.onnx"])
    state = plain.state_dict()
    save_file(state, root / "initial" / "weights.safetensors")
    torch.save(state, root / "initial" / "weights.pt")
    torch.save(
        {"epoch": 3, "model": {f"module.{name}": value for name, value in state.items()}}, root / "initial/outer.pt"
    )
    loader = DataLoader(TensorDataset(torch.zeros(2, 1, 32, 32), torch.tensor([0, 1])), batch_size=2)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=1, enable_checkpointing=False, **quiet)
    trainer.fit(Classifier(dubito.models.build("lenet5", in_channels=1), num_data=2, epochs=1), loader)
    trainer.save_checkpoint(root / "checkpoint" / "network.ckpt")


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """The working folder is another one."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
