"""`clipwise report`: the page of a real run in a real browser, hostile and damaged run folders, and what it prints."""

import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from typer.testing import CliRunner

from clipwise.cli import app
from clipwise.lab.report.bars import Bar, draw_bars

KEYS = {"run", "page", "pictures", "problems", "figures"}


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def refused(*words, code=2):
    result = run(*words, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)["error"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of seconds: three epochs of a linear model on digits, with a method that moves its threshold."""
    folder = tmp_path_factory.mktemp("runs") / "a run"
    answer(
        *("train", "--model", "linear", "--epsilon", "5", "--epochs", "3", "--batch", "500", "--accountant", "rdp"),
        *("--seed", "7", "--method", "quantile", "--out", folder),
    )
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "a run"))


def make_old(folder):
    """As version 0.1 left it, without privacy: nothing vouches for the files."""
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "private": False}))
    for name in ("manifest.json", "ledger.jsonl", ".ledger.jsonl.head"):
        (folder / name).unlink()


def make_unfinished(folder):
    """As a kill before the end leaves it: the ledger is not closed, and there is no manifest."""
    ledger = folder / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    (folder / ".ledger.jsonl.head").unlink()
    (folder / "manifest.json").unlink()


@pytest.fixture
def quick_pictures(monkeypatch):
    """For tests of the page alone: drawing PNGs is most of the time of a report."""
    monkeypatch.setattr("clipwise.lab.report.run_report.png", lambda figure: figure.title.encode())


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: the page was not opened in a browser")
    browser = Browser()
    yield browser
    browser.close()


def lines_of(folder):
    return list(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()))


def test_page_and_pictures(folder):
    made = answer("report", folder)
    assert set(made) == KEYS
    assert made["page"] == str(folder / "report.html")
    names = {"attack", "epsilon", "accuracy", "threshold"}  # noise and rate do not move: numbers, no charts
    assert {Path(path).stem for path in made["pictures"]} == names
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in made["pictures"])
    result, shown = json.loads((folder / "result.json").read_text()), made["figures"]
    for key in ("epsilon", "delta", "accuracy", "steps", "noise_multiplier", "method", "private"):
        assert shown[key] == result[key], key
    assert (shown["test_size"], shown["target_epsilon"], shown["finished"]) == (360, 5.0, True)
    assert shown["accuracy_interval"][0] < shown["accuracy"] < shown["accuracy_interval"][1]
    assert shown["last"] == lines_of(folder)[-1]
    assert made["problems"] == []
    page = (folder / "report.html").read_text()
    assert not {"http:", "https:"} & set(page.replace('"', " ").split())
    assert len(page) < 60_000


@pytest.mark.usefixtures("quick_pictures")
def test_what_an_attacker_gains_is_on_the_page(folder, tmp_path):
    """This run was accounted for by RDP: its pair alone counts. The same run by the tight accountant has a whole curve."""
    answer("report", folder)
    page, told = (folder / "report.html").read_text(), json.loads((folder / "result.json").read_text())
    assert "from epsilon and delta alone" in page
    pair = {each["false_positive_rate"]: each["true_positive_rate"] for each in told["attack"]}
    assert pair[0.001] == pytest.approx(math.exp(told["epsilon"]) * 0.001 + told["delta"], rel=1e-6)
    words = ("train", "--model", "linear", "--epsilon", "5", "--epochs", "1", "--batch", "500", "--seed", "7")
    tight = answer(*words, "--out", tmp_path / "tight")
    assert all(each["true_positive_rate"] < 0.5 * pair[each["false_positive_rate"]] for each in tight["attack"][:2])
    answer("report", tmp_path / "tight")
    page = (tmp_path / "tight" / "report.html").read_text()
    assert "from the whole trade-off curve" in page
    assert "In plain words" in page
    share = next(e["true_positive_rate"] for e in tight["attack"] if e["false_positive_rate"] == 0.01)
    assert f"any attack, at most {100 * share:.2f} %" in page


@pytest.mark.usefixtures("quick_pictures")
def test_a_number_instead_of_a_chart_of_a_constant(folder):
    answer("report", folder)
    page = (folder / "report.html").read_text()
    over = page[page.index("Over the run") :]
    noise = lines_of(folder)[0]["noise_multiplier"]
    assert f"<dt>Noise multiplier (noise std / l2 bound)</dt><dd>{noise:.6g}<small>throughout" in over
    assert over.count('class="chart"') == 3  # epsilon, accuracy, threshold
    assert "<dt>Clipping threshold C</dt>" not in over


def test_bars_start_at_zero():
    drawn = draw_bars("Accuracy", [Bar("a", 90.0, 88.0, 92.0, "90 %"), Bar("b", 45.0, 44.0, 46.0, "45 %")])
    widths = [float(width) for width in re.findall(r'class="f0" x="[^"]+" y="[^"]+" width="([^"]+)"', drawn)]
    assert widths[0] == pytest.approx(2 * widths[1], rel=1e-3)
    assert ">0 %<" in drawn


@pytest.mark.usefixtures("quick_pictures")
def test_released_norms_stand_beside_the_threshold(tmp_path):
    words = ("train", "--model", "linear", "--epsilon", "5", "--epochs", "2", "--batch", "500", "--seed", "7")
    answer(*words, "--method", "dc-sgd-e", "--out", tmp_path / "run")
    answer("report", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "90th percentile of the norms, as released" in page
    path = list(map(json.loads, (tmp_path / "run" / "path.jsonl").read_text().splitlines()))
    assert all(0 < line["norm_median"] <= line["norm_90"] for line in path)


@pytest.mark.usefixtures("quick_pictures")
def test_people_read_where_it_is(folder):
    for _ in range(2):  # a report that is there is replaced
        result = run("report", folder)
        assert result.exit_code == 0
        assert result.stdout.count(str(folder / "report")) == 5


@pytest.mark.usefixtures("quick_pictures")
def test_in_a_browser(folder, browser):
    answer("report", folder)
    page, lines = folder / "report.html", lines_of(folder)
    for scheme, dark in (("light", False), ("dark", True)):
        browser.open(page, scheme=scheme)
        assert browser.errors == []
        red = int(browser.js("getComputedStyle(document.body).backgroundColor").split("(")[1].split(",")[0])
        assert (red < 60) == dark
    text = browser.js("document.body.innerText")
    for part in ("differentially private", "Privacy spent", "What is not covered", "config.toml"):
        assert part in text
    assert browser.js("document.body.scrollWidth <= innerWidth")
    # Every number of metrics.jsonl stands in the table as it stands there, in its order.
    table = "document.querySelector('details table.sortable')"
    assert browser.js(f"[...{table}.querySelectorAll('th')].map(h => h.textContent)") == list(lines[0])
    cells = f"[...{table}.tBodies[0].rows].map(r => [...r.cells].map(c => JSON.parse(c.textContent)))"
    assert browser.js(cells) == [list(line.values()) for line in lines]
    # The classes have a bar each, with their accuracy on test data.
    groups = json.loads((folder / "result.json").read_text())["by_group"]["class"]["groups"]
    bars = browser.js("[...document.querySelectorAll('.bars g > title')].map(t => t.textContent)")
    assert bars == [f"{group['group']}: {group['accuracy']:.2%}" for group in groups]
    assert len(bars) == 10
    # It sorts, both ways, by a press of a heading.
    browser.js(f"{table}.closest('details').open = true")
    column = list(lines[0]).index("threshold")
    wanted = sorted(line["threshold"] for line in lines)
    for order, words in ((wanted, "ascending"), (wanted[::-1], "descending")):
        browser.js(f"{table}.querySelectorAll('th button')[{column}].focus()")
        browser.press("Enter")
        assert [row[column] for row in browser.js(cells)] == order
        assert browser.js(f"{table}.querySelectorAll('th')[{column}].getAttribute('aria-sort')") == words
    assert browser.errors == []


@pytest.mark.usefixtures("quick_pictures")
def test_charts_answer_to_keyboard_and_pointer(folder, browser):
    answer("report", folder)
    browser.open(folder / "report.html")
    lines = lines_of(folder)
    chart = "document.querySelectorAll('.chart')[1]"  # the first is what an attacker gains
    said = f"{chart}.querySelector('output').textContent"
    assert browser.js(f"{chart}.querySelector('output').hidden")
    browser.js(f"{chart}.focus()")
    for key, line in (("ArrowRight", 0), ("ArrowRight", 1), ("End", -1), ("Home", 0)):
        browser.press(key)
        assert browser.js(said) == f"step {lines[line]['step']}\nepsilon {lines[line]['epsilon']:.6g}"
    browser.press("Escape")
    assert browser.js(f"{chart}.querySelector('output').hidden")
    box = browser.js(
        "(c => { c.scrollIntoView(); return c.querySelectorAll('circle')[1].getBoundingClientRect().toJSON() })"
        "(document.querySelectorAll('.chart')[2])"
    )
    browser.move_to(box["x"] + 3, box["y"] + 20)
    shown = browser.js("document.querySelectorAll('.chart output')[2].textContent")
    assert shown.startswith(f"step {lines[1]['step']}\naccuracy {100 * lines[1]['accuracy']:.2f} % (")
    alts = browser.js("[...document.querySelectorAll('svg')].map(s => [s.getAttribute('role'), s.ariaLabel])")
    assert alts
    assert all(role == "img" and label for role, label in alts)
    assert browser.errors == []


@pytest.mark.usefixtures("quick_pictures")
def test_on_paper_folds_are_open(folder, browser):
    answer("report", folder)
    browser.open(folder / "report.html", scheme="dark")
    assert browser.js("document.querySelectorAll('details[open]').length") == 0
    browser.js("dispatchEvent(new Event('beforeprint'))")
    assert browser.js("document.querySelectorAll('details:not([open])').length") == 0
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.call("Emulation.setEmulatedMedia", media="")
    browser.js("dispatchEvent(new Event('afterprint'))")
    assert browser.js("document.querySelectorAll('details[open]').length") == 0


NASTY = "</title></style><script>document.title='hit'</script><img src=x onerror=\"document.title='hit'\">"


def make_nasty(folder):
    make_old(folder)
    line = {"step": 1, NASTY: 1.0, "note": NASTY, "list": [1, 2], "epsilon": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n" + json.dumps({**line, "step": 2}) + "\n")
    (folder / "config.toml").write_text(f"data = {json.dumps(NASTY)}\nmodel = {json.dumps(NASTY)}\nepsilon = inf\n")
    (folder / "statement.md").write_text(f"# Privacy statement\n\n{NASTY} ![i](http://example.com/i.png)\n")
    (folder / "result.json").write_text(json.dumps({"error": NASTY, "kind": NASTY}))


def test_text_from_the_folder_stays_text(folder, browser):
    make_nasty(folder)
    made = answer("report", folder)
    assert all(Path(path).parent == folder / "report" for path in made["pictures"])
    browser.open(folder / "report.html")
    assert browser.errors == []
    assert browser.js("[document.querySelectorAll('img').length, document.scripts.length]") == [0, 1]
    assert browser.js("document.title.startsWith('Clipwise')")
    assert "onerror" in browser.js("document.body.innerText")


@pytest.mark.usefixtures("quick_pictures")
def test_a_script_that_slipped_in_would_not_run(folder, browser):
    """The policy in the head is the second lock: it must hold by itself."""
    answer("report", folder)
    page = folder / "report.html"
    page.write_text(page.read_text().replace("<header>", "<script>document.title='hit'</script><header>"))
    browser.open(page)
    assert browser.js("document.title") != "hit"
    assert any("Content Security Policy" in error for error in browser.errors)


@pytest.mark.usefixtures("quick_pictures")
def test_nasty_text_is_escaped_without_a_browser(folder):
    make_nasty(folder)
    answer("report", folder)
    page = (folder / "report.html").read_text()
    assert page.count("<script") == 1
    assert "<img" not in page


def test_a_failed_run_is_reported_as_far_as_it_came(folder):
    make_unfinished(folder)
    for name in ("metrics.jsonl", "path.jsonl", "statement.md", "model.safetensors"):
        (folder / name).unlink()
    steps = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text('{"error": "power lost", "kind": "RuntimeError"}')
    made = answer("report", folder)
    assert [Path(path).name for path in made["pictures"]] == ["attack.png"]  # by what the ledger charges up to then
    assert any("power lost" in problem for problem in made["problems"])
    shown = made["figures"]
    assert (shown["finished"], shown["steps"]) == (False, steps["steps"])
    assert shown["epsilon"] == steps["epsilon"]  # from the ledger, by the accountant of the run
    page = (folder / "report.html").read_text()
    assert "power lost" in page
    assert "wrote no privacy statement" in page
    assert "metrics.jsonl</a>" not in page

    (folder / "result.json").unlink()
    assert any("not finished" in problem for problem in answer("report", folder)["problems"])


def test_without_privacy_the_page_says_so(tmp_path):
    words = ("--model", "linear", "--epsilon", "inf", "--epochs", "1", "--out", tmp_path / "a", "--batch", "500")
    answer("train", *words)
    made = answer("report", tmp_path / "a")
    assert (made["figures"]["epsilon"], made["figures"]["private"]) == (None, False)
    assert "epsilon" not in {Path(path).stem for path in made["pictures"]}
    page = (tmp_path / "a" / "report.html").read_text()
    assert "trained without privacy" in page
    assert "<dd>infinite" in page


@pytest.mark.usefixtures("quick_pictures")
def test_a_ledger_that_does_not_fit_is_refused(folder):
    ledger = folder / "ledger.jsonl"
    whole = ledger.read_text()
    ledger.write_text(whole.replace('"sample_rate":0.3', '"sample_rate":0.2', 1))
    assert "ledger does not pass" in refused("report", folder, code=1)
    ledger.write_text(whole)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "steps": 2}))
    assert "result.json is not what the run wrote" in refused("report", folder, code=1)
    (folder / "manifest.json").unlink()
    ledger.unlink()
    assert "ledger.jsonl is missing" in refused("report", folder, code=1)
    assert not (folder / "report.html").exists()


@pytest.mark.usefixtures("quick_pictures")
def test_a_run_of_version_0_1_is_reported_with_a_note(folder):
    make_old(folder)
    (problem,) = answer("report", folder)["problems"]
    assert "Not verified" in problem
    assert "version 0.1" in problem
    assert "Not verified" in (folder / "report.html").read_text()
    golden = Path(__file__).parent / "golden" / "ledger-0.1.jsonl"
    shutil.copy(golden, folder / "ledger.jsonl")
    (folder / "statement.md").unlink()
    problems = answer("report", folder)["problems"]
    assert any("Not verified" in problem for problem in problems)
    assert any("ledger charges 22" in problem for problem in problems)
    (folder / "ledger.jsonl").write_bytes(golden.read_bytes().replace(b"1.5", b"9.5", 1))
    assert "does not pass" in refused("report", folder, code=1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", '{"step": 1}\n{"step": 2, "acc', "line 2 of"),
        ("metrics.jsonl", "[1]\n", "not a JSON object"),
        ("metrics.jsonl", "[" * 100_000, "not JSON"),
        ("metrics.jsonl", b"\xff\xfe", "cannot be read"),
        ("result.json", "{", "result.json is not JSON"),
        ("config.toml", "data = ", "not valid TOML"),
    ],
)
def test_a_damaged_file_is_refused_by_name(folder, name, content, message):
    make_old(folder)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    error = refused("report", folder)
    assert message in error
    assert name in error
    assert not (folder / "report.html").exists()


def test_what_is_no_run_is_refused(tmp_path):
    assert "does not exist" in refused("report", tmp_path / "gone")
    (tmp_path / "file").touch()
    assert "not a folder" in refused("report", tmp_path / "file")
    assert "none of a run's files" in refused("report", tmp_path)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.usefixtures("quick_pictures")
def test_out_goes_elsewhere_and_links_lead_back(folder, tmp_path):
    made = answer("report", folder, "--out", tmp_path / "b" / "c")
    assert made["page"] == str(tmp_path / "b" / "c" / "report.html")
    assert not (folder / "report.html").exists()
    assert 'href="../../a%20run/ledger.jsonl"' in (tmp_path / "b" / "c" / "report.html").read_text()
    (tmp_path / "file").touch()
    assert "cannot be written" in refused("report", folder, "--out", tmp_path / "file")
