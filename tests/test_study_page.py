"""The page of a study in a real browser: numbers as in results.jsonl, sorting, hover, dark, narrow and on paper."""

import json

import pytest
from browser import CHROMIUM, Browser

from clipwise.lab.report.study_report import write_study_report
from clipwise.lab.study import make_study

PUBLISHED = {"1": 91.5, "4": 95.25}


def definition():
    fixed = [
        {"name": f"fixed, C = {c:g}", "method": "fixed", "method_options": {"threshold": c}, "published": PUBLISHED}
        for c in (0.1, 1.0, 10.0)
    ]
    return {
        "title": "Two <b>methods</b> & a plain one",
        "source": "A paper, Table 1",
        "tuning_cost": "not charged",
        "common": {"data": "digits", "model": "linear"},
        "grid": [{"epsilon": [1, 4], "seed": [0]}, {"epsilon": [4], "seed": [1, 2]}],
        "picture": {"x": "threshold"},
        "variant": [{"name": "plain", "epsilon": float("inf")}, *fixed, {"name": "auto-s", "method": "auto-s"}],
    }


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder as a finished study leaves it, with accuracies that a formula gives: what is tested is the page."""
    folder = tmp_path_factory.mktemp("study")
    made = make_study(definition(), folder / "made.toml")
    lines = []
    for place, trial in enumerate(made.trials):
        epsilon = None if trial.config.epsilon == float("inf") else trial.config.epsilon
        lines.append(
            {
                "id": trial.id,
                "variant": trial.variant,
                "target_epsilon": epsilon,
                "asked_method_options": trial.config.method_options,
                "asked_lr": None,
                "method": trial.config.method if epsilon else "none",
                "data": "digits",
                "model": "linear",
                "epsilon": epsilon and epsilon - 1 / 1024,
                "accuracy": (900 + 37 * place % 83) / 1024,
                "noise_multiplier": 1.0 / (place + 3),
                "steps": 28,
                "seed": trial.config.seed,
                "run": f"runs/{trial.id}",
                "seconds": 1.5,
                "clipwise": "0",
            }
        )
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "runs" / lines[3]["id"]).mkdir(parents=True)
    (folder / "runs" / lines[3]["id"] / "ledger.jsonl").touch()
    made.about("clipwise study made.toml").write(folder)
    return write_study_report(folder), lines


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: the page was not opened in a browser")
    browser = Browser()
    yield browser
    browser.close()


EVERY = "document.querySelectorAll('table.sortable')[1]"
SUMMARY = "document.querySelectorAll('table.sortable')[0]"


def rows(browser, table):
    return browser.js(f"[...{table}.tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))")


def test_its_numbers_are_those_of_the_results(study, browser):
    written, lines = study
    browser.open(written.page)
    assert browser.errors == []
    heads = browser.js(f"[...{EVERY}.querySelectorAll('th')].map(h => h.textContent)")
    for row, line in zip(rows(browser, EVERY), lines, strict=True):
        shown = dict(zip(heads, row, strict=True))
        for name in ("target_epsilon", "epsilon", "accuracy", "noise_multiplier", "steps", "seed"):
            assert shown[name] == ("" if line[name] is None else json.dumps(line[name])), name
        assert shown["ledger"] == ("ledger" if line is lines[3] else "")
    assert browser.js(f"{EVERY}.querySelector('a').getAttribute('href')") == f"{lines[3]['run']}/ledger.jsonl"
    # Means, points lost and published figures of the summary, worked out here from the lines.
    heads = browser.js(f"[...{SUMMARY}.querySelectorAll('th')].map(h => h.textContent)")
    means = {}
    for line in lines:
        means.setdefault((line["variant"], line["target_epsilon"]), []).append(100 * line["accuracy"])
    means = {key: sum(some) / len(some) for key, some in means.items()}
    found = [dict(zip(heads, row, strict=True)) for row in rows(browser, SUMMARY)]
    assert len(found) == len(means) == 1 + 4 * 2
    for row in found:
        epsilon = float(row["epsilon"]) if row["epsilon"] else None
        mean = means[row["method"], epsilon]
        assert row["accuracy %"] == f"{mean:.2f}"
        assert row["lost to privacy"] == ("" if epsilon is None else f"{means['plain', None] - mean:.2f}")
        published = PUBLISHED[row["epsilon"]] if row["method"].startswith("fixed") else None
        assert row["published %"] == ("" if published is None else f"{published:.2f}")
        assert row["ours above it"] == ("" if published is None else f"{mean - published:.2f}")
    text = browser.js("document.body.innerText")
    for part in ("Two <b>methods</b> & a plain one", "not charged", "A paper, Table 1", "19 of 19"):
        assert part in text


@pytest.mark.parametrize("how", ["click", "Enter"])
def test_it_sorts_by_pointer_and_by_keyboard(study, browser, how):
    browser.open(study[0].page)
    column = browser.js(f"[...{SUMMARY}.querySelectorAll('th')].map(h => h.textContent)").index("accuracy %")
    button = f"{SUMMARY}.querySelectorAll('th button')[{column}]"
    wanted = sorted(float(row[column]) for row in rows(browser, SUMMARY))
    for order, words in ((wanted, "ascending"), (wanted[::-1], "descending")):
        if how == "click":
            browser.js(f"{button}.scrollIntoView()")
            box = browser.js(f"{button}.getBoundingClientRect().toJSON()")
            browser.click(box["x"] + 5, box["y"] + 5)
        else:
            browser.js(f"{button}.focus()")
            browser.press(how)
        assert [float(row[column]) for row in rows(browser, SUMMARY)] == order
        assert browser.js(f"{button}.parentElement.getAttribute('aria-sort')") == words
    assert browser.errors == []


def test_values_under_pointer_and_cursor(study, browser):
    written, lines = study
    browser.open(written.page)
    charts = browser.js("[...document.querySelectorAll('.chart')].map(c => c.getAttribute('aria-label'))")
    assert [label.split(";")[0] for label in charts] == [
        "digits, linear, epsilon 1: accuracy against threshold",
        "digits, linear, epsilon 4: accuracy against threshold",
        "digits, linear: accuracy against epsilon",
    ]
    browser.js("document.querySelector('.chart').focus()")
    browser.press("ArrowRight")
    at_one = {line["variant"]: line["accuracy"] for line in lines if line["target_epsilon"] == 1}
    said = browser.js("document.querySelector('.chart output').textContent")
    assert said == f"threshold 0.1\nfixed {100 * at_one['fixed, C = 0.1']:.2f} %\nauto-s {100 * at_one['auto-s']:.2f} %"
    # Each bar says what it is and the published figure; the one with most seeds is in view, the other folded.
    bars = "[...document.querySelectorAll('.bars')]"
    assert browser.js(f"{bars}.map(b => b.closest('details') === null)") == [True, False]
    titles = browser.js(f"[...{bars}[0].querySelectorAll('g > title')].map(t => t.textContent)")
    assert len(titles) == 5
    assert all("(published 95.25)" in title for title in titles if title.startswith("fixed"))
    assert titles[-1].startswith("plain: ")
    alts = browser.js("[...document.querySelectorAll('svg')].map(s => [s.getAttribute('role'), s.ariaLabel])")
    assert all(role == "img" and label for role, label in alts)


def test_dark_narrow_and_on_paper(study, browser):
    for scheme, dark in (("light", False), ("dark", True)):
        browser.open(study[0].page, scheme=scheme)
        red = int(browser.js("getComputedStyle(document.body).backgroundColor").split("(")[1].split(",")[0])
        assert (red < 60) == dark
        assert browser.errors == []
    browser.open(study[0].page, width=420)
    assert browser.js("document.body.scrollWidth") <= 420  # wide parts scroll by themselves
    assert browser.js("document.querySelector('.bars svg').getBoundingClientRect().width") > 420
    assert browser.js("document.querySelectorAll('details[open]').length") == 0
    browser.js("dispatchEvent(new Event('beforeprint'))")
    assert browser.js("document.querySelectorAll('details:not([open])').length") == 0
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.call("Emulation.setEmulatedMedia", media="")


def test_elsewhere_the_links_lead_back(study, tmp_path):
    written, lines = study
    page = write_study_report(written.page.parent, tmp_path / "b").page.read_text()
    assert f'/{lines[3]["run"]}/ledger.jsonl">ledger</a>' in page
    assert f'href="../../{written.page.parent.name}/results.jsonl"' in page


def test_pictures(study):
    names = ["digits-linear-threshold-epsilon-1.png", "digits-linear-threshold-epsilon-4.png", "digits-linear.png"]
    assert [path.name for path in study[0].pictures] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in study[0].pictures)
