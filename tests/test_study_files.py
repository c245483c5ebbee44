"""The study files of the project: each can be read, says what it is, and has a quick version. No data is needed."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clipwise.cli import app
from clipwise.clipping import METHODS, make_method
from clipwise.data import is_file
from clipwise.lab.results import read_results
from clipwise.lab.study import located, make_study, read_study
from clipwise.types import BadArgument

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "clipwise" / "lab" / "study" / "files").glob("*.toml"))


def columns_of(study):
    stated = (
        t.config.epsilon if t.config.noise_multiplier is None else t.config.noise_multiplier for t in study.trials
    )
    return {f"{at:g}" for at in stated}


def extending(file):
    others = (other for other in FILES if tomllib.loads(other.read_text()).get("extends") == file.stem)
    return [read_study(other, check=False) for other in others]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_file_says_what_it_is(file):
    study = read_study(file, check=False)
    assert study.title
    assert study.source or study.differs.startswith(("no ", "the four papers"))  # why there is nothing to compare with
    assert study.differs
    assert study.minutes >= 1
    assert study.tuning_cost in ("none", "charged", "not charged")
    assert study.tuning
    raw = tomllib.loads(file.read_text())
    # the run without privacy beside the others; where regret is asked for, or a part of another study is run again, it stands elsewhere
    assert any(t.config.epsilon == float("inf") for t in study.trials) or raw.keys() & {"regret", "extends"}
    columns = columns_of(study).union(*(columns_of(other) for other in extending(file)))
    for trial in study.trials:
        assert METHODS[trial.config.method].sound or trial.config.allow_unsound
        make_method(
            trial.config.method, **trial.config.method_options
        )  # an option that was renamed since is refused here
        # a figure at an epsilon (or a sigma_0) that neither this study nor one that extends it runs would never be seen
        assert trial.published.keys() <= columns or "extends" in raw
    quick = read_study(file, quick=True, check=False)
    assert len(quick.trials) <= 6
    if file.stem != "quick":
        assert all((trial.config.epochs or 99) <= 2 for trial in quick.trials)


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "results").glob("*.jsonl")), ids=lambda file: file.stem)
def test_published_results_are_those_of_their_study(file):
    """Put into a study's folder as results.jsonl they are not run again: their ids are those of the file's runs."""
    trials = read_study(Path(file.stem.removesuffix("-results")), check=False).trials
    lines = read_results(file)
    assert lines
    if any(is_file(trial.config.data) for trial in trials):  # ids hold what is in the files, which a script writes
        wanted = {(t.variant, Path(t.config.data).name, t.config.epsilon) for t in trials}
        assert {(line["variant"], line["data"], line["target_epsilon"]) for line in lines} <= wanted
    else:
        assert {line["id"] for line in lines} <= {trial.id for trial in trials}


EXTENDED = """
extends = "whole"
title = "a part"
minutes = 1
variants = ["fixed", "new"]
[common]
epochs = 2
[grid]
seed = [7]
[[variant]]
name = "fixed"
lr = 0.5
[[variant]]
name = "new"
method = "psac"
"""
WHOLE = """
title = "the whole"
source = "a paper"
[common]
data = "digits"
epsilon = 3
epochs = 100
[grid]
seed = [0, 1, 2]
[[variant]]
name = "fixed"
method = "fixed"
lr = 0.1
published = { "3" = 90 }
[[variant]]
name = "auto-s"
method = "auto-s"
"""


def test_a_file_that_extends_another(tmp_path):
    def read(text):
        (tmp_path / "part.toml").write_text(text)
        return read_study(tmp_path / "part.toml", check=False)

    (tmp_path / "whole.toml").write_text(WHOLE)
    study = read(EXTENDED)
    assert (study.title, study.source, study.minutes) == ("a part", "a paper", 1)
    assert [(t.variant, t.config.method, t.config.lr, t.config.epochs, t.config.seed) for t in study.trials] == [
        ("fixed", "fixed", 0.5, 2, 7),
        ("new", "psac", None, 2, 7),
    ]
    assert study.trials[0].published == {"3": 90.0}
    for wrong, words in (
        (EXTENDED.replace('"whole"', '"nothing"'), "nothing"),
        (EXTENDED.replace('extends = "whole"', ""), "extends=None"),
        (EXTENDED.replace('["fixed", "new"]', '["quantile"]'), "quantile"),
    ):
        with pytest.raises(BadArgument, match=words):
            read(wrong)
    (tmp_path / "whole.toml").write_text('extends = "quick"')
    with pytest.raises(BadArgument, match="extends another"):
        read(EXTENDED)


def test_the_file_in_the_docs_is_one():
    page = (ROOT / "docs" / "studies.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    whole = make_study(tomllib.loads(block), Path("docs.toml"), check=False)
    assert (len(whole.trials), whole.picture) == (6 + 3, "threshold")
    assert len(make_study(tomllib.loads(block), Path("docs.toml"), quick=True, check=False).trials) == 1


def test_the_list(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # the files come with the package: from any folder
    result = CliRunner().invoke(app, ["study", "--list", "--json"])
    assert result.exit_code == 0, result.output
    found = {Path(row["file"]).stem: row for row in json.loads(result.stdout)}
    assert found.keys() == {file.stem for file in FILES}
    assert found["mnist_epsilons"]["runs"] == 16 * (4 + 2) + 3
    assert "Table V" in found["mnist_epsilons"]["source"]
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["study", "--list"]).stdout.splitlines()
    for file in FILES:  # one line: name, runs, minutes and what it compares with
        (line,) = (line for line in shown if line.split()[:1] == [file.stem])
        assert line.split()[1] == str(found[file.stem]["runs"])
    assert any(
        re.match(r"paper_001_training_short .*Global-Adapt-V2-S, Tables 18 to 21$", line.strip()) for line in shown
    )
    (details,) = json.loads(CliRunner().invoke(app, ["study", "--list", "paper_001_training_short", "--json"]).stdout)
    alone = CliRunner().invoke(app, ["study", "--list", "paper_001_training_short"]).stdout
    assert " ".join(details["differs"].split()[:6]) in " ".join(alone.split())
    for words in (["study"], ["study", "--list", "."], ["study", "no_such_study"]):
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 2


def test_a_name_is_enough_and_a_file_of_ones_own_comes_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert read_study(Path("quick"), check=False).name == "quick"
    (tmp_path / "threshold_sweep").mkdir()  # the results of a study, in a folder of its name, are no study
    for name in ("quick", "threshold_sweep"):
        assert located(Path(name)) == FILES[0].parent / f"{name}.toml"
    for own in ("quick", "quick.toml", "sub/quick"):
        file = tmp_path / own
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
        assert located(Path(own)) == Path(own)
        file.unlink()
    assert (ROOT / "studies" / "quick.toml").samefile(FILES[0].parent / "quick.toml")  # as docs and results name them
