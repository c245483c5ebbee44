"""Thinwall, on files of its form: the real set is not at hand."""

import numpy as np
import pytest

from clipwise.data import load
from clipwise.data.thinwall import HOTTEST, melt_pool, read_image
from clipwise.types import BadArgument

ROWS, COLUMNS = 480, 752


def thermal(row, column, peak=2200.0):
    """A melt pool around (row, column), cold elsewhere."""
    y, x = np.mgrid[:ROWS, :COLUMNS]
    return (peak * np.exp(-((y - row) ** 2 + (x - column) ** 2) / 800)).round(1)


def write_image(path, image):
    path.write_text("\n".join(",".join(f"{value:g}" for value in row) for row in image) + "\n")


def peak(i):
    return 1700.0 + 100 * i


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Eight images, written once."""
    root = tmp_path_factory.mktemp("data")
    (root / "thinwall" / "images").mkdir(parents=True)
    for i in range(8):
        write_image(root / "thinwall" / "images" / f"{i}.csv", thermal(200 + i, 300 + 10 * i, peak(i)))
    return root


@pytest.fixture
def folder(images, monkeypatch):
    monkeypatch.setenv("CLIPWISE_DATA", str(images))
    lines = ["file,layer,label", *(f"images/{i}.csv,{i},{int(i in (2, 5))}" for i in range(8))]
    (images / "thinwall" / "labels.csv").write_text("\n".join(lines) + "\n")
    return images / "thinwall"


@pytest.mark.usefixtures("folder")
def test_a_folder_of_images():
    dataset = load("thinwall")
    assert (len(dataset.train), len(dataset.test), dataset.classes, dataset.shape) == (6, 2, 2, (1, 200, 200))
    seen = set()
    for part in (dataset.train, dataset.test):
        for image, label in part:
            assert np.unravel_index(int(image.argmax()), (200, 200)) == (100, 100)  # every pool is in the middle
            number = round((float(image.max()) * HOTTEST - peak(0)) / 100)
            assert int(label) == int(number in (2, 5))  # and has its own label
            seen.add(number)
    assert seen == set(range(8))
    assert load("thinwall").train.tensors[0].equal(dataset.train.tensors[0])
    assert any("public constant" in note for note in dataset.notes)


@pytest.mark.parametrize(("row", "column", "at"), [(0, 0, (0, 0)), (479, 751, (199, 199)), (240, 10, (100, 10))])
def test_a_pool_at_the_border(row, column, at):
    window = melt_pool(thermal(row, column))
    assert window.shape == (200, 200)
    middle = np.argwhere(window == window.max()).mean(axis=0)
    assert tuple(middle) == pytest.approx(
        at, abs=12
    )  # the window stops at the border, and the cut pool's middle lies inside


def test_nothing_molten_and_strange_pixels():
    assert np.unravel_index(melt_pool(thermal(200, 300, peak=900)).argmax(), (200, 200)) == (100, 100)
    image = thermal(200, 300)
    image[0, 0], image[1, 1] = np.nan, -np.inf
    assert np.isfinite(melt_pool(image)).all()
    assert melt_pool(np.zeros((200, 200))).shape == (200, 200)


LABELS = {
    "empty": ("", "no column 'file'"),
    "no label column": ("file,kind\nimages/0.csv,0\n", "no column 'label'"),
    "no images": ("file,label\n", "names no images"),
    "a word": ("file,label\nimages/0.csv,porous\n", "not 0"),
    "a fraction": ("file,label\nimages/0.csv,0.5\n", "not 0"),
    "another class": ("file,label\nimages/0.csv,2\n", "not 0"),
    "no label": ("file,label\nimages/0.csv\n", "not 0"),
    "outside": ("file,label\n../../secret.csv,0\n", "outside"),
    "absolute": ("file,label\n/etc/passwd,0\n", "outside"),
    "gone": ("file,label\nimages/gone.csv,0\n", r"gone\.csv cannot be read"),
    "a folder": ("file,label\nimages,0\n", "cannot be read"),
    "one image": ("file,label\nimages/0.csv,0\n", "too few"),
    "not text": (b"\xff\xfe", "cannot be read as text"),
}


@pytest.mark.parametrize("case", LABELS)
def test_bad_labels(folder, case):
    content, message = LABELS[case]
    (folder / "labels.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadArgument, match=message):
        load("thinwall")


def test_a_link_that_leads_out(folder, tmp_path):
    write_image(tmp_path / "secret.csv", np.zeros((200, 200)))
    (folder / "link.csv").unlink(missing_ok=True)
    (folder / "link.csv").symlink_to(tmp_path / "secret.csv")
    (folder / "labels.csv").write_text("file,label\nlink.csv,0\n")
    with pytest.raises(BadArgument, match="outside"):
        load("thinwall")


IMAGES = {
    "empty": (b"", "0 rows and 0 columns"),
    "words": (b"1,2,hot\n", "no number"),
    "ragged": (b"1,2,3\n1,2\n", "different lengths"),
    "small": (b"1,2,3\n" * 3, "3 rows and 3 columns; give at least 200"),
    "long": (b"1\n" * 5000, "above 4096"),
}


@pytest.mark.parametrize("case", IMAGES)
def test_bad_images(tmp_path, case):
    content, message = IMAGES[case]
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(BadArgument, match=message):
        read_image(tmp_path / "a.csv")


def test_an_image_of_one_endless_line(tmp_path):
    with (tmp_path / "a.csv").open("wb") as handle:
        handle.truncate(5 * 1024**3)  # sparse
    with pytest.raises(BadArgument, match="a line above 262144 characters"):
        read_image(tmp_path / "a.csv")
