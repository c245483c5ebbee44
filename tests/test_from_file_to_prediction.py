"""From a file of one's own to a prediction: each kind of file, trained on, loaded in a new process, and predicted to the bit."""

import csv
import json
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

import clipwise
from clipwise.accounting import Ledger
from clipwise.cli import app
from clipwise.data.preprocessing import Preprocessing
from clipwise.training.verify import NotVerified, RunTampered
from clipwise.types import BadArgument

ROWS = 240
FAST = ("--epochs", "1", "--batch", "60", "--epsilon", "8", "--accountant", "rdp", "--seed", "3")
WORDS = ("--label", "outcome", "--classes", "no,yes", "--missing", "age=flag", "--date", "since=year:2000:2030,month")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def rows():
    draw = np.random.RandomState(0)
    for number in range(ROWS):
        age = "" if number % 17 == 3 else str(20 + draw.randint(0, 60))
        city = ("Paris", "Lyon", "Zürich", "")[draw.randint(0, 4)]
        since = f"20{draw.randint(10, 24)}-0{draw.randint(1, 10)}-1{draw.randint(0, 10)}"
        yield [age, f"{draw.lognormal(8, 1):.2f}", city, since, "yes" if draw.rand() > 0.5 else "no"]


HEADER = ["age", "income", "city", "since", "outcome"]


def write_csv(path):
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # with a byte-order mark, as spreadsheets write it
        csv.writer(file).writerows([HEADER, *rows()])
    return path


def frame():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(list(rows()), columns=HEADER)
    table["age"] = pandas.to_numeric(table["age"])
    table["income"] = table["income"].astype(float)
    table["city"] = table["city"].replace("", None)
    return table


def write_arrow(path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_pandas(frame(), preserve_index=False)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    return path


def write_npz(path):
    draw = np.random.RandomState(0)
    np.savez(path, x=draw.randint(0, 256, (ROWS, 9, 9)).astype(np.uint8), y=np.arange(ROWS) % 3)
    return path


def write_images(path):
    image = pytest.importorskip("PIL.Image")
    draw = np.random.RandomState(0)
    for number in range(80):
        folder = path / ("cats" if number % 2 else "dogs")
        folder.mkdir(parents=True, exist_ok=True)
        size = (12, 10) if number % 3 else (9, 9)
        image.fromarray(draw.randint(0, 255, (*size, 3)).astype(np.uint8)).save(folder / f"{number}.png")
    return path


def write_texts(path):
    draw = np.random.RandomState(0)
    for number in range(80):
        folder = path / ("bad" if number % 2 else "good")
        folder.mkdir(parents=True, exist_ok=True)
        text = " ".join(draw.choice(["fine", "awful", "film", "naïve", "plot", folder.name], 12))
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return path


KINDS = {
    "csv": (write_csv, "people.csv", (*WORDS, "--category", "city=hashed:8", "--range", "income=0:20000", "--range", "age=0:100")),
    "learned": (write_csv, "people.csv", (*WORDS, "--learn-categories", "city", "--learn-ranges")),
    "declared": (write_csv, "people.csv", (*WORDS, "--public-categories", "city", "--public-ranges", "*")),
    "parquet": (write_arrow, "people.parquet", (*WORDS, "--category", "city=Paris,Lyon", "--range", "income=0:20000")),
    "arrow": (write_arrow, "people.arrow", (*WORDS, "--category", "city=Paris,Lyon", "--range", "income=0:20000")),
    "npz": (write_npz, "pixels.npz", ()),
    "images": (write_images, "pets", ("--image-size", "1x9x9", "--standardize", "0.5:0.25", "--batch", "20")),
    "texts": (write_texts, "films", ("--text-length", "10", "--batch", "20")),
    "number": (write_csv, "people.csv", ("--label", "income", "--range", "income=0:200000", "--loss", "huber:delta=0.5", "--drop", "outcome",
               "--category", "city=hashed:8", "--missing", "flag", "--date", "since=year:2000:2030", "--learn-ranges")),
}  # fmt: skip

# What a new process does: it loads each run and predicts the file's held-out records as training met them.
AGAIN = """
import json, sys
from collections import Counter
from pathlib import Path
import clipwise
from clipwise.cli.predict import records_of
from clipwise.training.evaluate import held_out_rows
found = {}
for name, (run, file) in json.loads(sys.argv[1]).items():
    trained = clipwise.load(run)
    x, labels = records_of(trained, Path(file))
    found[name] = trained.outputs(held_out_rows(trained, Path(file), x, labels)[0]).tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Each kind, trained on: name -> (run folder, file, result)."""
    made = {}
    for name, (write, file, words) in KINDS.items():
        folder = tmp_path_factory.mktemp(name)
        try:
            path = write(folder / file)
        except pytest.skip.Exception:
            continue
        result = answer("train", "--data", path, "--out", folder / "run", *FAST, *words)
        made[name] = folder / "run", path, result
    return made


def test_a_new_process_predicts_what_training_saw_to_the_bit(runs):
    told = json.dumps({name: (str(folder), str(file)) for name, (folder, file, _) in runs.items()})
    done = subprocess.run([sys.executable, "-c", AGAIN, told], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == set(runs) >= {"csv", "learned", "declared", "npz", "texts", "number"}
    for name, (folder, _, result) in runs.items():
        if name == "number":
            trained = clipwise.load(folder)
            predicted = trained.preprocessing.target.decode(np.array(found[name], np.float32)[:, 0])
            assert len(predicted) == result["test_size"]
            continue
        with np.load(folder / "predictions.npz") as kept:
            assert np.array_equal(kept["scores"], np.array(found[name], np.float32)), name


def test_the_figures_of_evaluate_are_those_of_training(runs, tmp_path):
    for name in ("csv", "learned", "npz", "texts"):
        folder, file, result = runs[name]
        assert answer("evaluate", folder, file)["accuracy"]["value"] == pytest.approx(result["accuracy"]), name
    folder, file, result = runs["number"]
    assert answer("evaluate", folder, file)["errors"] == pytest.approx(result["errors"])
    folder, file, _ = runs["csv"]
    found = answer("evaluate", folder, file, "--group-by", "city", "--picture", tmp_path / "a.png")
    assert [row["group"] for row in found["by_group"]["city"]["groups"]] == ["(empty)", "Lyon", "Paris", "Zürich"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "held out" in found["whose"]
    other = tmp_path / "other.csv"
    other.write_bytes(file.read_bytes())
    assert "keeps no list" in answer("evaluate", folder, other)["whose"]


def test_predict_writes_a_line_a_record(runs, tmp_path):
    folder, file, _ = runs["csv"]
    out = tmp_path / "predictions.csv"
    assert run("predict", folder, file, "--out", out).exit_code == 0
    lines = list(csv.DictReader(out.open(encoding="utf-8")))
    trained = clipwise.load(folder)
    table = [dict(zip(HEADER, row, strict=True)) for row in rows()]
    columns = {name: [row[name] for row in table] for name in HEADER if name != "outcome"}
    assert [line["prediction"] for line in lines] == trained.predict(columns).tolist()
    assert [float(line["probability of yes"]) for line in lines] == trained.predict_proba(columns)[:, 1].tolist()
    assert "exists already" in run("predict", folder, file, "--out", out).output


def test_a_table_of_another_kind_gives_the_same_numbers(runs):
    folder, _, _ = runs["csv"]
    trained = clipwise.load(folder)
    columns = dict(zip(HEADER, zip(*rows(), strict=True), strict=True))
    expected = trained.outputs(columns)
    assert np.array_equal(trained.outputs(frame()), expected)
    datasets = pytest.importorskip("datasets")
    assert np.array_equal(trained.outputs(datasets.Dataset.from_pandas(frame())), expected)


def test_arrays_texts_and_image_paths(runs):
    texts = clipwise.load(runs["texts"][0])
    assert set(texts.predict(["a fine film", "an awful plot"])) <= {"good", "bad"}
    pixels = clipwise.load(runs["npz"][0])
    assert pixels.predict(np.zeros((4, 9, 9), np.uint8)).tolist() == pixels.predict(np.zeros((4, 1, 9, 9))).tolist()
    with pytest.raises(BadArgument, match=r"give records of shape \(1, 9, 9\)"):
        pixels.predict(np.zeros((4, 8, 8)))
    if "images" in runs:
        pets = clipwise.load(runs["images"][0])
        assert pets.predict(sorted((runs["images"][1] / "cats").iterdir())[:2]).shape == (2,)


def test_what_a_loaded_run_says_of_itself(runs):
    folder, _, result = runs["learned"]
    trained = clipwise.load(folder)
    assert trained.epsilon == pytest.approx(result["epsilon"])
    assert trained.classes == ("no", "yes")
    assert "ranges of age, income: learned from the training records" in trained.statement
    assert "frequent categories of city" in trained.statement
    assert "declared public by the user" in clipwise.load(runs["declared"][0]).statement
    with pytest.raises(BadArgument, match="no probabilities"):
        clipwise.load(runs["number"][0]).predict_proba({})


def test_what_is_learned_is_charged_in_the_runs_own_budget(runs):
    folder, _, result = runs["learned"]
    ledger = Ledger.read(folder / "ledger.jsonl")
    full = [event for event in ledger.events() if event.sample_rate == 1]
    # and what method auto measures: sizes of inputs, their mean, sizes again, norms, and scores of its race
    assert sum(event.count for event in full) == 3 + 5
    assert ledger.epsilon(result["delta"], "rdp").value == pytest.approx(result["epsilon"])
    assert result["epsilon"] <= 8
    assert result["steps"] == sum(event.count for event in ledger.events())
    kept = json.loads((folder / "preprocessing.json").read_text())["learned"]
    charged = Counter({event.noise_multiplier: event.count for event in full})
    assert len(kept) == 3
    assert Counter(each["noise_multiplier"] for each in kept) <= charged


@pytest.mark.parametrize("name", ["preprocessing.json", "model.safetensors", "config.toml"])
def test_a_changed_file_is_refused(runs, tmp_path, name):
    import shutil

    folder = shutil.copytree(runs["csv"][0], tmp_path / "run")
    raw = bytearray((folder / name).read_bytes())
    raw[-3] ^= 1
    (folder / name).write_bytes(raw)
    with pytest.raises(RunTampered, match=name):
        clipwise.load(folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / "manifest.json").unlink()
    with pytest.raises((RunTampered, NotVerified)):
        clipwise.load(folder)


def test_preprocessing_reads_back_as_it_was_written(runs):
    for folder, _, _ in runs.values():
        text = (folder / "preprocessing.json").read_text(encoding="utf-8")
        assert Preprocessing.from_json(text).to_json() == text
    for bad in ("{}", "[]", "1", '{"schema": 2}', text.replace('"kind"', '"kin"'), text[:-20]):
        with pytest.raises(BadArgument):
            Preprocessing.from_json(bad)


def test_exports_carry_preprocessing_and_statement(runs, tmp_path):
    from safetensors.torch import load_file

    trained = clipwise.load(runs["csv"][0])
    folder = trained.export(tmp_path / "plain")
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors",
        "model.json",
        "preprocessing.json",
        "statement.md",
    }
    state = trained.model.state_dict()
    assert all(value.equal(state[name]) for name, value in load_file(folder / "model.safetensors").items())
    card = (trained.export(tmp_path / "hub", "huggingface") / "README.md").read_text()
    assert card.startswith("---\n")
    assert "differentially private" in card
    assert json.loads((tmp_path / "hub" / "config.json").read_text())["id2label"] == {"0": "no", "1": "yes"}
    with pytest.raises(BadArgument, match="exists already"):
        trained.export(folder)
    with pytest.raises(BadArgument, match=r"NAME\.pt2"):
        trained.export(tmp_path / "a", "torch")
    with pytest.raises(BadArgument, match="choose one of"):
        trained.export(tmp_path / "a", "pickle")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["csv", "npz", "texts"])
def test_programs_give_the_same_outputs(runs, tmp_path, name):
    import torch

    folder, file, _ = runs[name]
    trained = clipwise.load(folder)
    from clipwise.cli.predict import records_of

    x = trained.inputs(records_of(trained, file)[0])
    extra = {"preprocessing.json": "", "statement.md": ""}
    program = torch.export.load(trained.export(tmp_path / "a.pt2", "torch"), extra_files=extra)
    expected = trained.model(x).detach().numpy()
    assert np.allclose(program.module()(x).detach().numpy(), expected, atol=1e-5)
    assert "differentially private" in extra["statement.md"]
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    model = onnx.load(trained.export(tmp_path / "a.onnx", "onnx"))
    assert {each.key for each in model.metadata_props} >= {"preprocessing.json", "statement.md"}
    runtime = pytest.importorskip("onnxruntime")
    outputs = runtime.InferenceSession(str(tmp_path / "a.onnx")).run(None, {"records": x.numpy()})[0]
    assert np.allclose(outputs, expected, atol=1e-4)


def test_init_writes_a_config_that_trains(tmp_path):
    file = write_csv(tmp_path / "people.csv")
    told = run("data", file)
    assert told.exit_code == 0, told.output
    for words in ("--missing age=flag", "--category city=hashed:32", "--date since=year", "warning: no public range"):
        assert words in told.stdout
    assert not any(value in told.stdout for value in ("Paris", "Zürich", "yes,", "2011"))
    config = tmp_path / "made.toml"
    assert run("init", file, "--out", config).exit_code == 0
    text = config.read_text()
    assert "Paris" not in text
    assert 'public_categories = ["outcome"]' in text
    result = answer("train", "--config", config, "--out", tmp_path / "run", *FAST)
    assert result["private"]
    assert math.isfinite(clipwise.load(tmp_path / "run").epsilon)
    assert "exists already" in run("init", file, "--out", config).output


def test_a_run_that_was_cut_goes_on_with_what_it_had_learned(tmp_path):
    from clipwise.training import folder as run_folder
    from clipwise.training.config import make_config
    from clipwise.training.execute import load_asked, make_network, train_into
    from clipwise.training.resolve import resolve

    class Cut(Exception):
        pass

    def cut(values, _):
        if values["step"] == 3:
            raise Cut

    file = write_csv(tmp_path / "people.csv")
    asked = make_config(
        {"data": str(file), "label": "outcome", "classes": ["no", "yes"], "learn_ranges": True, "learn_categories": ["city"],
         "missing": {"*": "flag"}, "dates": {"since": ["month"]}, "epochs": 2, "batch": 60, "epsilon": 8.0, "accountant": "rdp"}
    )  # fmt: skip
    dataset = load_asked(asked)
    settings = resolve(asked, dataset)
    folder = run_folder.create(str(tmp_path / "run"), "people", "fixed")
    with pytest.raises(Cut):
        train_into(folder, settings, dataset, make_network(settings, dataset), every_steps=2, on_step=cut)
    kept = (folder.path / "preprocessing.json").read_text()
    before = [event for event in Ledger.read(folder.ledger).events() if event.sample_rate == 1]
    result = answer("resume", folder.path)
    assert (folder.path / "preprocessing.json").read_text() == kept
    assert [event for event in Ledger.read(folder.ledger).events() if event.sample_rate == 1] == before
    assert result["epsilon"] <= 8
    assert clipwise.load(folder.path).classes == ("no", "yes")
