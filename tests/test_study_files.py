"""The study files of the project: each can be read, says what it is, and has a quick version. No data is needed."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clipwise.cli import app
from clipwise.clipping import METHODS, make_method
from clipwise.lab.study import located, make_study, read_study

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "clipwise" / "lab" / "study" / "files").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_file_says_what_it_is(file):
    study = read_study(file, check=False)
    assert study.title
    assert study.source or study.differs.startswith(("no ", "the four papers"))  # why there is nothing to compare with
    assert study.differs
    assert study.minutes >= 1
    assert study.tuning_cost in ("none", "charged", "not charged")
    assert study.tuning
    assert any(
        trial.config.epsilon == float("inf") for trial in study.trials
    )  # the run without privacy beside the others
    stated = [
        t.config.epsilon if t.config.noise_multiplier is None else t.config.noise_multiplier for t in study.trials
    ]
    columns = {f"{at:g}" for at in stated}
    for trial in study.trials:
        assert METHODS[trial.config.method].sound or trial.config.allow_unsound
        make_method(
            trial.config.method, **trial.config.method_options
        )  # an option that was renamed since is refused here
        assert (
            trial.published.keys() <= columns
        )  # a figure at an epsilon (or a sigma_0) that is not run would never be seen
    quick = read_study(file, quick=True, check=False)
    assert len(quick.trials) <= 6
    if file.stem != "quick":
        assert all((trial.config.epochs or 99) <= 2 for trial in quick.trials)


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
    shown = CliRunner().invoke(app, ["study", "--list"]).stdout
    assert all(file.stem in shown for file in FILES)
    for words in (["study"], ["study", "--list", "."], ["study", "no_such_study"]):
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 2


def test_a_name_is_enough_and_a_file_of_ones_own_comes_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert read_study(Path("quick"), check=False).name == "quick"
    assert located(Path("quick")) == FILES[0].parent / "quick.toml"
    for own in ("quick", "quick.toml", "sub/quick"):
        file = tmp_path / own
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
        assert located(Path(own)) == Path(own)
        file.unlink()
    assert (ROOT / "studies" / "quick.toml").samefile(FILES[0].parent / "quick.toml")  # as docs and results name them
