"""Fashion-MNIST: articles of clothing, 28x28, in MNIST's format."""

from __future__ import annotations

from clipwise.data.idx import reader
from clipwise.data.source import Recipe, Source

FASHION_MNIST = Source(
    name="fashion_mnist",
    summary="articles of clothing, 28x28 grey",
    licence="MIT (Zalando Research)",
    how_to_get="data/fashion/ of github.com/zalandoresearch/fashion-mnist, in a folder fashion_mnist/",
    shape=(1, 28, 28),
    classes=10,
    train_count=60_000,
    test_count=10_000,
    recipe=Recipe(model="cnn", expected_batch_size=512, epochs=30, lr=0.1),
    tuning="the default settings are those of mnist; nothing was tuned on this data by Clipwise",
    read=reader("fashion_mnist"),
    files={
        "fashion_mnist/train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "fashion_mnist/train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "fashion_mnist/t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "fashion_mnist/t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
)
