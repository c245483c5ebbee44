"""Fetching, against a server on this machine that cuts, lies, stalls and forgets."""

import hashlib
import http.server
import json
import threading
from pathlib import Path

import pytest

from clipwise.data import DATASETS, fetch
from clipwise.data.fetch import FetchFailed
from clipwise.data.source import Edition, File, Recipe, Source, Split
from clipwise.types import BadArgument

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves /good (and bad ways of doing so, by path); writes down the Range of every request."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges = []
        self.cut_at = None  # bytes after which a transfer is cut
        self.cuts_left = 0
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server, path = self.server, self.path.strip("/")
        server.ranges.append(self.headers.get("Range"))
        if path == "missing":
            return self.send_error(404)
        if path == "busy" and len(server.ranges) < 3:
            return self.send_error(503)
        if path == "elsewhere":
            self.send_response(302)
            self.send_header("Location", server.url("good"))
            return self.end_headers()
        content = {"wrong": CONTENT[::-1], "short": CONTENT[:1000]}.get(path, CONTENT)
        start = 0
        if self.headers.get("Range") and path != "no-range":
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            offset = start + (path == "wrong-offset")
            self.send_header("Content-Range", f"bytes {offset}-{len(content) - 1}/{len(content)}")
        if path != "endless":
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        try:
            if server.cuts_left:
                server.cuts_left -= 1
                self.wfile.write(content[start : start + server.cut_at])
                self.wfile.flush()
                self.connection.close()
                return None
            self.wfile.write(content[start:])
            while path == "endless":
                self.wfile.write(content)
        except OSError:
            pass  # the client has had enough
        return None


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CLIPWISE_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fetch, "_PAUSE", 0.001)
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


def made(*urls, name="toy", more=()):
    files = {f"{name}/file.bin": File(SHA256, len(CONTENT), tuple(urls)), **dict(more)}
    edition = Edition(files, lambda _: (Split([], []), Split([], [])), 1, 1)
    return Source(
        name=name,
        summary="",
        kind="image",
        licence="",
        how_to_get="",
        shape=(1,),
        class_names=("0", "1"),
        recipe=Recipe("mlp", 1, 1, 0.1),
        tuning="",
        editions=(edition,),
    )


def cached():
    """Every file in the cache, save in the folder where transfers wait."""
    root = fetch.cache_folder()
    return [path for path in root.rglob("*") if path.is_file() and "downloads" not in path.parts]


def waiting():
    return [path.stat().st_size for path in (fetch.cache_folder() / "downloads").glob("*") if path.stat().st_size]


def test_a_file_arrives_whole_and_is_found(server):
    source = made(server.url("good"))
    assert source.find() is None
    seen = []
    root, files = fetch.fetch(source, lambda *state: seen.append(state))
    assert (root / "toy/file.bin").read_bytes() == CONTENT
    assert files == [{"file": "toy/file.bin", "bytes": len(CONTENT), "sha256": SHA256, "fetched": True}]
    assert source.find().root == root
    assert (seen[0], seen[-1]) == (("toy/file.bin", 0, len(CONTENT)), ("toy/file.bin", len(CONTENT), len(CONTENT)))
    assert [have for _, have, _ in seen] == sorted(have for _, have, _ in seen)
    assert not waiting()
    assert fetch.fetch(source)[1][0]["fetched"] is False
    assert len(server.ranges) == 1


def test_a_damaged_file_in_the_cache_is_fetched_again(server):
    target = fetch.cache_folder() / "toy/file.bin"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"half")
    fetch.fetch(made(server.url("good")))
    assert target.read_bytes() == CONTENT


def test_goes_on_after_cuts_in_one_call(server):
    server.cut_at, server.cuts_left = 300_000, 2
    fetch.fetch(made(server.url("good")))
    assert server.ranges == [None, "bytes=300000-", "bytes=600000-"]
    assert cached()[0].read_bytes() == CONTENT


def test_goes_on_in_the_next_call(server, monkeypatch):
    monkeypatch.setattr(fetch, "_MOST_REQUESTS", 1)
    server.cut_at, server.cuts_left = 300_000, 1
    with pytest.raises(FetchFailed, match="cut after 300,000 of 1,048,576 bytes; call again to go on"):
        fetch.fetch(made(server.url("good")))
    assert not cached()  # what has come so far waits elsewhere
    assert waiting() == [300_000]
    fetch.fetch(made(server.url("good")))
    assert server.ranges == [None, "bytes=300000-"]
    assert cached()[0].read_bytes() == CONTENT
    assert not waiting()


def test_gives_up_on_a_server_that_only_cuts(server):
    server.cut_at, server.cuts_left = 0, 10**6
    with pytest.raises(FetchFailed, match="cut after 0 of"):
        fetch.fetch(made(server.url("good")))
    assert len(server.ranges) == fetch._MOST_CUTS
    assert not cached()


@pytest.mark.parametrize("path", ["no-range", "wrong-offset"])
def test_a_server_that_cannot_go_on_starts_again(server, path):
    server.cut_at, server.cuts_left = 300_000, 1
    fetch.fetch(made(server.url(path)))
    assert cached()[0].read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(server):
    fetch.fetch(made(server.url("busy")))
    assert len(server.ranges) == 3


def test_a_redirect_is_followed(server):
    fetch.fetch(made(server.url("elsewhere")))
    assert cached()[0].read_bytes() == CONTENT


def test_wrong_bytes_are_named_with_both_sums_and_thrown_away(server):
    with pytest.raises(FetchFailed) as error:
        fetch.fetch(made(server.url("wrong")))
    for part in (SHA256, hashlib.sha256(CONTENT[::-1]).hexdigest(), "toy/file.bin", server.url("wrong")):
        assert part in str(error.value)
    assert not cached()
    assert not waiting()


def test_an_old_half_of_another_file_does_not_spoil_the_new_one(server):
    half = fetch.cache_folder() / "downloads" / f"{SHA256}.part"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"x" * 1000)
    fetch.fetch(made(server.url("good")))
    assert server.ranges == ["bytes=1000-", None]
    assert cached()[0].read_bytes() == CONTENT


def test_an_old_half_that_is_too_long(server):
    half = fetch.cache_folder() / "downloads" / f"{SHA256}.part"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"x" * (len(CONTENT) + 1))
    fetch.fetch(made(server.url("good")))
    assert cached()[0].read_bytes() == CONTENT


def test_a_file_that_is_shorter_than_on_record(server):
    with pytest.raises(FetchFailed, match="cut after"):
        fetch.fetch(made(server.url("short")))
    assert not cached()


def test_a_server_that_never_stops_does_not_fill_the_disk(server):
    with pytest.raises(FetchFailed, match="more than the 1,048,576 bytes on record"):
        fetch.fetch(made(server.url("endless")))
    assert not cached()
    assert not waiting()


def test_the_next_mirror_is_tried(server):
    fetch.fetch(made(server.url("missing"), server.url("wrong"), "http://127.0.0.1:9/", server.url("good")))
    assert cached()[0].read_bytes() == CONTENT


def test_missing_and_unreachable_say_what_to_do(server):
    for url, problem in ((server.url("missing"), "404"), ("http://127.0.0.1:9/x", "cannot be reached")):
        with pytest.raises(FetchFailed, match=problem) as error:
            fetch.fetch(made(url))
        for part in ("Without a network", url, str(fetch.cache_folder() / "toy/file.bin"), SHA256, "CLIPWISE_DATA"):
            assert part in str(error.value)
    assert not cached()


def test_a_set_is_not_found_before_its_last_file(server):
    other = ("toy/second.bin", File(SHA256, len(CONTENT), (server.url("missing"),)))
    source = made(server.url("good"), more=[other])
    with pytest.raises(FetchFailed):
        fetch.fetch(source)
    assert source.find() is None
    assert [path.name for path in cached()] == ["file.bin"]  # whole, and not fetched again


def test_no_room(server, monkeypatch):
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: type("U", (), {"free": 1000})())
    with pytest.raises(FetchFailed, match="1,000 are free; make room"):
        fetch.fetch(made(server.url("good")))
    assert not server.ranges


def test_two_at_once(server):
    half = fetch.cache_folder() / "downloads" / f"{SHA256}.part"
    half.parent.mkdir(parents=True)
    with fetch._locked(half), pytest.raises(FetchFailed, match="another process"):
        fetch.fetch(made(server.url("good")))


def test_a_cache_that_is_a_file(server, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(FetchFailed, match="cannot be written"):
        fetch.fetch(made(server.url("good")))


@pytest.mark.parametrize("name", ["svhn-subset", "thinwall", "digits"])
def test_what_cannot_be_fetched_says_how_to_get_it(name):
    with pytest.raises(BadArgument, match="cannot be fetched; to get it: "):
        fetch.fetch(DATASETS[name])


def test_command(server, monkeypatch):
    from typer.testing import CliRunner

    from clipwise.cli import app

    monkeypatch.setitem(DATASETS, "toy", made(server.url("good")))
    run = lambda *words: CliRunner().invoke(app, ["data", *words])  # noqa: E731
    first = run("get", "toy", "--json")
    assert first.exit_code == 0
    answer = json.loads(first.stdout)
    assert (answer["name"], answer["where"], answer["found_earlier_in"]) == ("toy", str(fetch.cache_folder()), None)
    assert [file["fetched"] for file in answer["files"]] == [True]
    assert json.loads(run("--json", "get", "toy").stdout)["files"][0]["fetched"] is False
    assert "0 of them fetched now; sha256 checked" in run("get", "toy").stdout
    Path("data/toy").mkdir(parents=True)
    Path("data/toy/file.bin").write_bytes(CONTENT)
    assert "comes first" in run("get", "toy").stdout
    monkeypatch.setitem(DATASETS, "toy", made(server.url("missing"), name="other"))
    failed = run("get", "toy", "--json")
    assert (failed.exit_code, json.loads(failed.stdout)["kind"]) == (1, "FetchFailed")
    assert run("get", "nope").exit_code == 2
    assert run("get", "thinwall").exit_code == 2
    assert "nothing to fetch" in run("get", "digits").stdout
