"""MNIST: handwritten digits, 28x28."""

from __future__ import annotations

from clipwise.data.idx import reader
from clipwise.data.source import Recipe, Source

MNIST = Source(
    name="mnist",
    summary="handwritten digits, 28x28 grey",
    licence="commonly given as CC BY-SA 3.0 (LeCun, Cortes, Burges)",
    how_to_get="the four idx files, compressed with gzip -9, in a folder mnist/",
    shape=(1, 28, 28),
    classes=10,
    train_count=60_000,
    test_count=10_000,
    recipe=Recipe(model="cnn", expected_batch_size=512, epochs=30, lr=0.1),
    tuning=(
        "the default settings follow a reference run on this same data, whose settings were compared on the test part; "
        "this was not charged, and accuracy with them is optimistic"
    ),
    read=reader("mnist"),
    files={
        "mnist/train-images-idx3-ubyte.gz": "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",
        "mnist/train-labels-idx1-ubyte.gz": "1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203",
        "mnist/t10k-images-idx3-ubyte.gz": "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
        "mnist/t10k-labels-idx1-ubyte.gz": "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
    },
)
