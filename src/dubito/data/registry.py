"""The data sets that dubito knows by name: one table that the code, the command line, the tests and the docs read.

Means and standard deviations are those of the training images as the networks see them, in the data set's size and
in [0, 1], so the zero padding of the MNIST family counts. `dubito.data.statistics(dubito.data.load(NAME,
"train").images)` computes them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dubito.data.fitting import Fit
from dubito.errors import OptionError, unknown

Split = Literal["train", "validation", "test"]
Format = Literal["embedded", "idx", "cifar10", "cifar100"]

IMAGE_SIZE = 32
"""Height and width of images that leave the data layer, unless another size is asked for."""


@dataclass(frozen=True)
class DataFile:
    """One file of a data set: its size and hash as officially published, and which splits need it."""

    name: str
    size: int
    splits: tuple[Split, ...]
    hash: str | None = None
    """`"sha256:..."` or `"md5:..."`; None for members of an archive whose hash covers them."""


@dataclass(frozen=True)
class Archive:
    """The one tar.gz in which a data set's files are officially published."""

    name: str
    size: int
    hash: str


@dataclass(frozen=True)
class DatasetInfo:
    """All that is known about a data set before it is read."""

    name: str
    title: str
    format: Format
    channels: int
    class_names: tuple[str, ...]
    train_count: int
    test_count: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    """Whether a mirrored image keeps its label, so that flipping augments."""
    flip_reason: str
    size: int = IMAGE_SIZE
    """Height and width of the images that are given to a network."""
    padding: int = 0
    """Black pixels that were added on each side of the original image to make it `size` x `size`."""
    fit: Fit = "crop"
    """How files of other proportions are made square for a network that was trained on this data set."""
    folder: str = ""
    """The folder that holds the files, in a mirror and in the cache."""
    files: tuple[DataFile, ...] = ()
    sources: tuple[str, ...] = ()
    """Official base URLs, in the order in which they are tried."""
    archive: Archive | None = None
    homepage: str = ""

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def download_size(self) -> int:
        """The bytes that an official download transfers."""
        return self.archive.size if self.archive else sum(file.size for file in self.files)

    def files_for(self, split: Split | None = None) -> tuple[DataFile, ...]:
        """The files that a split needs, or all of them."""
        return tuple(file for file in self.files if split is None or split in file.splits)

    def count(self, split: Split) -> int:
        """The number of images of a split."""
        return self.train_count if split == "train" else self.test_count


def _idx_files(*published: tuple[int, str]) -> tuple[DataFile, ...]:
    """The four files of the MNIST family, in the order training images, training labels, test images, test labels."""
    names: tuple[tuple[str, Split], ...] = (
        ("train-images-idx3-ubyte.gz", "train"),
        ("train-labels-idx1-ubyte.gz", "train"),
        ("t10k-images-idx3-ubyte.gz", "test"),
        ("t10k-labels-idx1-ubyte.gz", "test"),
    )
    return tuple(
        DataFile(name, size, (split,), hash) for (name, split), (size, hash) in zip(names, published, strict=True)
    )


def _cifar10_file(name: str, split: Split, sha256: str) -> DataFile:
    """One file of 10,000 records: a label byte and 3 x 32 x 32 pixels each."""
    return DataFile(name, 30_730_000, (split,), f"sha256:{sha256}")


_DIGITS = tuple("0123456789")

_CIFAR100_CLASSES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""

_TABLE = (
    DatasetInfo(
        name="digits",
        title="scikit-learn's 8 x 8 handwritten digits, scaled up; no download",
        format="embedded",
        channels=1,
        class_names=_DIGITS,
        train_count=1438,
        test_count=359,
        mean=(0.305989,),
        std=(0.323546,),
        flip=False,
        flip_reason="a mirrored digit is no digit, or another one",
        fit="pad",
        homepage="https://archive.ics.uci.edu/dataset/80",
    ),
    DatasetInfo(
        name="mnist",
        title="handwritten digits",
        format="idx",
        channels=1,
        class_names=_DIGITS,
        train_count=60_000,
        test_count=10_000,
        mean=(0.100037,),
        std=(0.275217,),
        flip=False,
        flip_reason="a mirrored digit is no digit, or another one",
        fit="pad",
        padding=2,
        folder="mnist",
        files=_idx_files(
            (9_912_422, "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (28_881, "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (1_648_877, "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (4_542, "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
        sources=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        homepage="http://yann.lecun.com/exdb/mnist/",
    ),
    DatasetInfo(
        name="fashion-mnist",
        title="photographs of clothes",
        format="idx",
        channels=1,
        class_names=(
            "t-shirt/top",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        train_count=60_000,
        test_count=10_000,
        mean=(0.219,),
        std=(0.331811,),
        flip=True,
        fit="pad",
        flip_reason="clothes are symmetric or, like shoes, come in left and right",
        padding=2,
        folder="fashion-mnist",
        files=_idx_files(
            (26_421_880, "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            (29_515, "md5:25c81989df183df01b3e8a0aad5dffbe"),
            (4_422_102, "md5:bef4ecab320f06d8554ea6380940ec79"),
            (5_148, "md5:bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        sources=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        homepage="https://github.com/zalandoresearch/fashion-mnist",
    ),
    DatasetInfo(
        name="cifar10",
        title="small colour photographs, 10 classes",
        format="cifar10",
        channels=3,
        class_names=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
        train_count=50_000,
        test_count=10_000,
        mean=(0.4914, 0.482158, 0.446531),
        std=(0.247032, 0.243485, 0.261588),
        flip=True,
        flip_reason="a mirrored photograph of a thing or animal is as likely as the photograph",
        folder="cifar-10-batches-bin",
        files=(
            _cifar10_file(
                "data_batch_1.bin", "train", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
            ),
            _cifar10_file(
                "data_batch_2.bin", "train", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"
            ),
            _cifar10_file(
                "data_batch_3.bin", "train", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"
            ),
            _cifar10_file(
                "data_batch_4.bin", "train", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"
            ),
            _cifar10_file(
                "data_batch_5.bin", "train", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"
            ),
            _cifar10_file("test_batch.bin", "test", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
            DataFile(
                "batches.meta.txt",
                61,
                ("train", "test"),
                "sha256:558e74b5e208382e186da55784b4bac2cd52e558448e1b5800990fdb28ed8033",
            ),
        ),
        sources=("https://www.cs.toronto.edu/~kriz/",),
        archive=Archive(
            "cifar-10-binary.tar.gz",
            170_052_171,
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    DatasetInfo(
        name="cifar100",
        title="small colour photographs, 100 classes",
        format="cifar100",
        channels=3,
        class_names=tuple(_CIFAR100_CLASSES.split()),
        train_count=50_000,
        test_count=10_000,
        mean=(0.507075, 0.486549, 0.440918),
        std=(0.267334, 0.256438, 0.27615),
        flip=True,
        flip_reason="a mirrored photograph of a thing or animal is as likely as the photograph",
        folder="cifar-100-binary",
        files=(
            DataFile("train.bin", 153_700_000, ("train",)),
            DataFile("test.bin", 30_740_000, ("test",)),
            DataFile("fine_label_names.txt", 725, ("train", "test")),
        ),
        sources=("https://www.cs.toronto.edu/~kriz/",),
        archive=Archive(
            "cifar-100-binary.tar.gz",
            168_513_733,
            "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
)

DATASETS: Mapping[str, DatasetInfo] = MappingProxyType({info.name: info for info in _TABLE})
"""Every data set with a name, by name."""


def dataset_info(name: str) -> DatasetInfo:
    """The table's row for a name; an unknown one lists the valid ones.

    >>> dataset_info("cifar10").num_classes
    10
    """
    try:
        return DATASETS[name]
    except KeyError:
        raise OptionError(unknown("data set", name, DATASETS)) from None
