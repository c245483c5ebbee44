"""`clipwise watch`: what it serves and to whom, by plain HTTP; and a run that grows, in a real browser."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial

import pytest
from browser import CHROMIUM, Browser
from typer.testing import CliRunner

from clipwise.cli import app
from clipwise.lab.watch import Watch
from clipwise.types import BadArgument

LINES = [
    {
        "epoch": n,
        "step": 10 * n,
        "accuracy": 0.5 + n / 10,
        "lr": 0.1,
        "epsilon": 0.5 * n,
        "threshold": 1.0 / n,
        "noise_multiplier": 1.25,
    }
    for n in range(1, 5)
]


def write(folder, lines, **result):
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text('epsilon = 3.0\ndelta = 1e-5\nepochs = 4\nmethod = "quantile"\n')
    (folder / "metrics.jsonl.new").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "metrics.jsonl.new").replace(folder / "metrics.jsonl")
    if result:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.fixture
def served(tmp_path):
    with Watch(write(tmp_path / "run", LINES[:2])) as watch:
        yield watch


def ask(watch, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", watch.port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in ({"Host": f"127.0.0.1:{watch.port}"} | headers).items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_the_page_has_the_run_and_needs_nobody_else(served):
    status, headers, page = ask(served)
    assert status == 200
    for part in (
        "Watching run",
        "epoch 2 of 4",
        "1.0000",
        "of 3 at delta 1e-05",
        "70.00%",
        "training",
        "Privacy spent",
    ):
        assert part in page, part
    assert "<dt>noise multiplier</dt><dd>1.25" in page  # a constant is a number
    assert page.count('class="chart"') == 3  # epsilon, accuracy, threshold
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page
    assert "connect-src 'self'" in page
    assert "default-src 'none'" in page
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"
    assert "Access-Control-Allow-Origin" not in headers


def test_what_changes_comes_when_it_has_changed(served, tmp_path):
    status, headers, first = ask(served, "/live")
    assert status == 200
    assert ask(served, "/live", If_None_Match=headers["ETag"])[0] == 304
    write(tmp_path / "run", LINES[:3])
    status, later, second = ask(served, "/live", If_None_Match=headers["ETag"])
    assert status == 200
    assert later["ETag"] != headers["ETag"]
    assert "epoch 3 of 4" in second
    assert "epoch 3 of 4" not in first
    write(tmp_path / "run", LINES, epsilon=2.0, private=True)
    assert "ended" in ask(served, "/live")[2]
    write(tmp_path / "run", LINES, error="the disk is full", kind="OSError")
    assert "The run failed: OSError: the disk is full" in ask(served, "/live")[2]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1.evil.example:{port}",
        "0.0.0.0:{port}",
        "",
    ],
)
def test_another_host_is_refused(served, host):
    """DNS rebinding: a name of somebody else that leads to 127.0.0.1."""
    for path in ("/", "/live"):
        status, _, text = ask(served, path, Host=host.format(port=served.port))
        assert status == 421
        assert "epsilon" not in text


def test_no_host_or_two_are_refused(served):
    for lines in (
        b"GET / HTTP/1.0\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nHost: a\r\n\r\n".encode(),
    ):
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
            connection.sendall(lines)
            assert b" 421 " in connection.recv(100)


def test_localhost_is_this_machine(served):
    assert ask(served, Host=f"localhost:{served.port}")[0] == 200


@pytest.mark.parametrize("path", ["/config.toml", "/../run/ledger.jsonl", "/%2e%2e/", "/live?x=1", "/metrics.jsonl"])
def test_there_is_nothing_else(served, path):
    assert ask(served, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_it_is_read_only(served, method):
    assert ask(served, method=method)[0] == 501


def test_head_has_no_body(served):
    status, headers, text = ask(served, method="HEAD")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 1000


def test_it_listens_on_loopback_alone(served):
    assert served._server.server_address[0] == "127.0.0.1"


def test_text_from_the_folder_stays_text(tmp_path):
    folder = write(
        tmp_path / "<img src=x>", [{**LINES[0], "<script>": 1.0}], error="<script>alert(1)</script>", kind="x"
    )
    with Watch(folder) as watch:
        page = ask(watch)[2]
    assert "<script>alert" not in page
    assert "<img" not in page


def test_before_the_first_epoch_and_half_written(tmp_path):
    folder = write(tmp_path / "run", [])
    with Watch(folder) as watch:
        assert "No epoch has ended yet" in ask(watch)[2]
        (folder / "metrics.jsonl").write_text('{"epoch": 1, "st')
        assert "is not JSON" in ask(watch, "/live")[2]
        write(folder, LINES[:1])
        assert "epoch 1 of 4" in ask(watch, "/live")[2]


def test_bad_arguments(tmp_path):
    with pytest.raises(BadArgument, match="does not exist"):
        Watch(tmp_path / "no")
    with pytest.raises(BadArgument, match="port=70000"):
        Watch(tmp_path, 70000)
    with Watch(tmp_path) as watch, pytest.raises(BadArgument, match=f"port={watch.port} cannot be had"):
        Watch(tmp_path, watch.port)
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "no"), "--json"])
    assert result.exit_code == 2
    assert "does not exist" in json.loads(result.stdout)["error"]


def test_from_the_command_line_until_ctrl_c(tmp_path):
    folder = write(tmp_path / "run", LINES)
    words = [sys.executable, "-m", "clipwise.cli", "watch", str(folder), "--json"]
    # a shell that starts tests in the background has them ignore SIGINT, and a child inherits that
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=heard)
    try:
        told = json.loads(process.stdout.readline())
        assert told["url"] == f"http://127.0.0.1:{told['port']}/"
        assert ask(type("Port", (), {"port": told["port"]}))[0] == 200
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_train_serves_itself(tmp_path, monkeypatch):
    """The page is there while the run trains, with what it has written up to then."""
    pages = []

    class Seen(Watch):
        def __exit__(self, *error):
            pages.append(ask(self)[2])
            super().__exit__(*error)

    monkeypatch.setattr("clipwise.lab.watch.Watch", Seen)
    words = ["train", "--model", "linear", "--epochs", "2", "--batch", "500", "--out", str(tmp_path / "run"), "--serve"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "watch it at http://127.0.0.1:" in result.stderr
    assert "epoch 2 of 2" in pages[0]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: the page was not opened in a browser")
def test_in_a_browser_the_page_follows_the_run(tmp_path):
    folder = write(tmp_path / "run", LINES[:2])
    browser = Browser()
    try:
        with Watch(folder) as watch:
            browser.open(watch.url)
            assert "epoch 2 of 4" in browser.js("document.body.innerText")
            circles = browser.js("document.querySelector('.chart').querySelectorAll('circle').length")
            write(folder, LINES, epsilon=2.0, private=True)
            for _ in range(100):
                if "epoch 4 of 4" in browser.js("document.body.innerText"):
                    break
                time.sleep(0.1)
            text = browser.js("document.body.innerText")
            assert "epoch 4 of 4" in text
            assert "ended" in text
            assert browser.js("document.querySelector('.chart').querySelectorAll('circle').length") > circles
            browser.js("document.querySelector('.chart').focus()")  # charts that came later answer too
            browser.press("End")
            assert browser.js("document.querySelector('.chart output').textContent") == "step 40\nepsilon 2"
            assert browser.js("document.body.scrollWidth <= innerWidth")
            assert browser.errors == []
        for _ in range(100):
            if "does not answer" in browser.js("document.getElementById('said').textContent"):
                break
            time.sleep(0.1)
        assert "does not answer" in browser.js("document.getElementById('said').textContent")
    finally:
        browser.close()
