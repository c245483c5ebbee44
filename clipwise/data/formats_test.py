"""The published formats whose files are not at hand: small files of each form, made here, read by the same functions."""

import io
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from clipwise.data import DATASETS, load
from clipwise.data.adult import read_adult
from clipwise.data.cifar100 import read_cifar100
from clipwise.data.cifar_binary import images, read_binary
from clipwise.data.planes import read_labels, read_planes
from clipwise.data.source import sha256_of
from clipwise.data.svhn import read_mat
from clipwise.types import BadArgument

PIXELS = np.random.RandomState(0).randint(0, 256, (5, 3, 32, 32)).astype(np.uint8)


def tar(path, **files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name.replace("__", "/").replace("_bin", ".bin"))
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def rows(labels, pixels):
    return b"".join(bytes(label) + image.tobytes() for label, image in zip(labels, pixels, strict=True))


def test_cifar100(tmp_path):
    path = tmp_path / "a.tar.gz"
    content = {
        "cifar-100-binary__train_bin": rows([(7, 90), (1, 2), (3, 4)], PIXELS[:3]),
        "cifar-100-binary__test_bin": rows([(5, 99), (6, 0)], PIXELS[3:]),
    }
    train, test = read_cifar100(tar(path, **content), 3, 2)
    assert (train.y.tolist(), test.y.tolist()) == ([90, 2, 4], [99, 0])  # the fine label is the second byte
    assert np.array_equal(np.round(train.x * 255), PIXELS[:3])
    assert np.array_equal(np.round(test.x * 255), PIXELS[3:])
    with pytest.raises(BadArgument, match="not the 12296 of 4 images"):
        read_cifar100(path, 4, 2)
    with pytest.raises(BadArgument, match="unpacks to more than"):
        read_cifar100(path, 2, 2)
    assert DATASETS["cifar100"].class_names[:2] == ("apple", "aquarium_fish")
    assert list(DATASETS["cifar100"].class_names) == sorted(DATASETS["cifar100"].class_names)


def test_cifar10_binary(tmp_path):
    path = tar(tmp_path / "a.tar.gz", d__one_bin=rows([(3,), (9,)], PIXELS[:2]), d__two_bin=rows([(0,)], PIXELS[2:3]))
    whole = read_binary(path, {"d/one.bin": 2, "d/two.bin": 1}, 1)
    assert whole[:, 0].tolist() == [3, 9, 0]
    assert np.array_equal(images(whole, 1), PIXELS[:3])


def test_planes(tmp_path):
    import lzma

    red, green, blue = PIXELS.transpose(1, 0, 2, 3)
    planes = np.stack([green, red - green, blue - green])
    for axis in (3, 2):  # differences along columns, then rows, modulo 256
        planes = np.diff(planes, axis=axis, prepend=np.uint8(0))
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(planes.tobytes()))
    assert np.array_equal(read_planes(path, 5), PIXELS)
    with pytest.raises(BadArgument, match="not the 18432 of 6 images"):
        read_planes(path, 6)
    with pytest.raises(BadArgument, match="unpacks to more than"):
        read_planes(path, 4)
    np.savez(tmp_path / "a.npz", train=[1])
    with pytest.raises(BadArgument, match="train and test"):
        read_labels(tmp_path / "a.npz")


def test_svhn(tmp_path):
    from scipy.io import savemat

    path = tmp_path / "a.mat"
    savemat(
        path,
        {"X": PIXELS.transpose(2, 3, 1, 0), "y": np.array([[1], [10], [9], [2], [10]], np.uint8)},
        do_compression=True,
    )
    split = read_mat(path)
    assert split.y.tolist() == [1, 0, 9, 2, 0]
    assert np.array_equal(np.round(split.x * 255), PIXELS)
    for content, message in (
        ({"X": PIXELS.transpose(2, 3, 1, 0)}, "X and y"),
        ({"X": PIXELS, "y": np.ones((5, 1), np.uint8)}, "shape"),
        ({"X": PIXELS.transpose(2, 3, 1, 0), "y": np.ones((4, 1), np.uint8)}, "shape"),
        ({"X": PIXELS.transpose(2, 3, 1, 0), "y": np.full((5, 1), 11, np.uint8)}, r"outside 1\.\.10"),
        ({"X": PIXELS.transpose(2, 3, 1, 0), "y": np.full((5, 1), 1.5)}, r"outside 1\.\.10"),
    ):
        savemat(path, content)
        with pytest.raises(BadArgument, match=message):
            read_mat(path)
    for damaged in (b"", b"hello" * 100, b"MATLAB 5.0" + bytes(200)):
        path.write_bytes(damaged)
        with pytest.raises(BadArgument, match="not a Matlab file"):
            read_mat(path)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Registers a data set's published edition with files made here: (name, path, bytes) -> the data set, loaded."""
    monkeypatch.setenv("CLIPWISE_DATA", str(tmp_path))

    def register(name, **files):
        first = DATASETS[name].editions[0]
        paths = list(first.files)
        assert len(paths) == len(files)
        for path, content in zip(paths, files.values(), strict=True):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(content)
        known = {path: file._replace(sha256=sha256_of(tmp_path / path)) for path, file in first.files.items()}
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], editions=(replace(first, files=known),)))
        return load(name)

    return register


def zipped(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("SST2", "SST-2") + ".tsv", content)
    return buffer.getvalue()


def test_glue_as_published(published):
    train = 'sentence\tlabel\nso "good \t1\nbad film \t0\n'
    sst2 = published("sst2", zip=zipped(SST2__train=train, SST2__dev="sentence\tlabel\nfine\t1\n"))
    assert (sst2.train.tensors[1].tolist(), sst2.test.tensors[1].tolist()) == ([1, 0], [1])
    assert (sst2.train.tensors[0] != 0).sum(1).tolist() == [2, 2]
    line = "index\tquestion\tsentence\tlabel\n0\tWho?\tThe cat.\tentailment\n1\tWhy so?\tNo.\tnot_entailment\n"
    qnli = published("qnli", zip=zipped(QNLI__train=line, QNLI__dev=line))
    assert qnli.train.tensors[1].tolist() == [1, 0]
    assert (qnli.train.tensors[0] != 0).sum(1).tolist() == [5, 5]  # words, question mark and separator


def test_ag_news_as_published(published):
    rows = b'"3","The street #39;s ""Bears""","Short\\sellers quot;see"\n"1","a","b"\n'
    news = published("ag_news", train=rows, test=rows)
    assert news.train.tensors[1].tolist() == [2, 0]
    # the street's bears short sellers see
    assert (news.train.tensors[0][0] != 0).sum() == 6
    assert not any("subset" in note for note in news.notes)


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("ag_news", {"train": b'"5","a","b"\n', "test": b'"1","a","b"\n'}, "none of 1, 2, 3, 4"),
        ("ag_news", {"train": b'"1"\n', "test": b'"1","a","b"\n'}, "fewer than 2 fields"),
        ("ag_news", {"train": b"", "test": b'"1","a","b"\n'}, "no rows"),
        ("ag_news", {"train": b"\xff", "test": b""}, "cannot be read as a table"),
        ("sst2", {"zip": b"no zip"}, "cannot be read as an archive"),
        ("sst2", {"zip": zipped(SST2__dev="sentence\tlabel\na\t1\n")}, "does not hold SST-2/train.tsv"),
        ("sst2", {"zip": zipped(SST2__train="sentence\tlabel\na\tx\n")}, "none of 0, 1"),
        ("sst2", {"zip": zipped(SST2__train="sentence\tlabel\n")}, "no rows"),
    ],
)
def test_damaged_tables(published, name, files, message):
    with pytest.raises(BadArgument, match=message):
        published(name, **files)


PERSON = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("|1x3 Cross validator\n", "no rows of 15"),
        (PERSON.replace("39", "old"), "column age holds what is no number"),
        (PERSON.replace("State-gov", "Secret-agent"), "none of Private"),
        (PERSON.replace("<=50K", "rich"), "none of <=50K"),
    ],
)
def test_damaged_adult(tmp_path, text, message):
    (tmp_path / "adult.data").write_text(text)
    with pytest.raises(BadArgument, match=message) as error:
        read_adult(tmp_path / "adult.data")
    assert "Secret" not in str(error.value)


def test_adult_values_beyond_the_public_ranges_are_cut_off(tmp_path):
    (tmp_path / "adult.test").write_text(
        f"|1x3 Cross validator\n{PERSON}.\n" + PERSON.replace("39", "150").replace("2174", "9e9") + ".\n"
    )
    split = read_adult(tmp_path / "adult.test")
    assert split.y.tolist() == [0, 0]
    assert split.x[1, 0] == split.x[1, 3] == 1
