"""Archives: members by name, never to disk, never more than expected."""

import gzip
import io
import lzma
import tarfile
import tracemalloc
import zipfile

import pytest

from clipwise.data.archive import members, unzipped
from clipwise.types import BadArgument


def make_tar(path, *entries):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = tarfile.SYMTYPE, str(content)
                archive.addfile(info)
    return path


def make_zip(path, *entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return path


MAKE = {"a.tar.gz": make_tar, "a.zip": make_zip}


@pytest.mark.parametrize("kind", MAKE)
def test_members_by_name(tmp_path, kind):
    path = MAKE[kind](tmp_path / kind, ("x/readme", b"hello"), ("x/a", b"12345"), ("x/b", b"6"))
    assert members(path, {"x/b": 1, "x/a": 5}) == {"x/a": b"12345", "x/b": b"6"}
    with pytest.raises(BadArgument, match="does not hold x/c"):
        members(path, {"x/c": 1})
    with pytest.raises(BadArgument, match="more than the 4 bytes it could be"):
        members(path, {"x/a": 4})


@pytest.mark.parametrize("kind", MAKE)
def test_paths_that_lead_out_are_never_followed(tmp_path, kind):
    folder = tmp_path / "inner"
    folder.mkdir()
    path = MAKE[kind](folder / kind, ("../out", b"evil"), ("/tmp/clipwise-evil", b"evil"), ("x", b"good"))
    before = sorted(tmp_path.rglob("*"))
    assert members(path, {"x": 4}) == {"x": b"good"}
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_is_not_a_file(tmp_path):
    (tmp_path / "secret").write_text("secret")
    path = make_tar(tmp_path / "a.tar.gz", ("x", tmp_path / "secret"))
    with pytest.raises(BadArgument, match="does not hold x"):
        members(path, {"x": 100})


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("member", ["x", "other"])
def test_bombs(tmp_path, kind, member):
    zeros = bytes(100 * 1024 * 1024)
    path = MAKE[kind](tmp_path / kind, (member, zeros), ("x" if member == "other" else "y", b"good"))
    del zeros
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    try:
        if (kind, member) == ("a.zip", "other"):
            assert members(path, {"x": 4}) == {"x": b"good"}  # a zip has a directory: the rest is not touched
        else:
            with pytest.raises(BadArgument, match="unpacks to more than"):
                members(path, {"x": 4})
        assert tracemalloc.get_traced_memory()[1] < 10 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_too_many_members(tmp_path):
    path = make_tar(tmp_path / "a.tar.gz", *((f"f{i}", b"") for i in range(1100)), ("x", b"good"))
    with pytest.raises(BadArgument, match="unpacks to more than"):
        members(path, {"x": 4})


@pytest.mark.parametrize("kind", MAKE)
def test_cut_and_other_files(tmp_path, kind):
    path = MAKE[kind](tmp_path / kind, ("x", bytes(range(256)) * 100))
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2], whole[:10]):
        path.write_bytes(content)
        with pytest.raises(BadArgument, match="put a fresh copy there"):
            members(path, {"x": 25600})
    path.unlink()
    with pytest.raises(BadArgument, match="put a fresh copy there"):
        members(path, {"x": 25600})


def test_unzipped(tmp_path):
    for name, compress in (("a.gz", gzip.compress), ("a.xz", lzma.compress)):
        path = tmp_path / name
        path.write_bytes(compress(b"12345"))
        assert unzipped(path, 5) == b"12345"
        with pytest.raises(BadArgument, match="more than the 4 bytes"):
            unzipped(path, 4)
        for content in (b"hello", compress(b"12345" * 100)[:-9]):
            path.write_bytes(content)
            with pytest.raises(BadArgument, match="cannot be unpacked"):
                unzipped(path, 1000)
