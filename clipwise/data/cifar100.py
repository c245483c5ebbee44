"""CIFAR-100: photographs of a hundred kinds of thing, 32x32 colour, in the binary form as published (fine labels)."""

from __future__ import annotations

from pathlib import Path

from clipwise.data.cifar_binary import images, read_binary
from clipwise.data.planes import scaled
from clipwise.data.source import UNTUNED, Edition, File, Recipe, Source, Split, listed

_ARCHIVE = "cifar100/cifar-100-binary.tar.gz"
_TRAIN, _TEST = 50_000, 10_000  # records, as published
_FILES = {
    _ARCHIVE: File(
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        168_513_733,
        ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
    )
}
# The fine labels in the order of the published fine_label_names.txt, which is alphabetical.
_CLASSES = listed("""
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
""")


def read_cifar100(archive: Path, train: int = _TRAIN, test: int = _TEST) -> tuple[Split, Split]:
    """The two parts of an archive with that many images in them."""
    parts = (read_binary(archive, {f"cifar-100-binary/{n}.bin": c}, 2) for n, c in (("train", train), ("test", test)))
    first, second = (Split(scaled(images(rows, 2)), rows[:, 1]) for rows in parts)  # byte 0 is the coarse label
    return first, second


CIFAR100 = Source(
    name="cifar100",
    summary="photographs of a hundred kinds of thing, 32x32 colour",
    kind="image",
    licence="none stated by the authors (Krizhevsky 2009)",
    how_to_get="clipwise data get cifar100",
    shape=(3, 32, 32),
    class_names=_CLASSES,
    recipe=Recipe(model="cnn", expected_batch_size=1024, epochs=30, lr=0.1),
    tuning=UNTUNED,
    editions=(Edition(_FILES, lambda root: read_cifar100(root / _ARCHIVE), _TRAIN, _TEST),),
)
