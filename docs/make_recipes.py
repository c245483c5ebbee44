"""Writes the table of docs/recipes.md from docs/results/recipes.jsonl. Run, where the data is: .venv/bin/python docs/make_recipes.py

The results are made by `clipwise study studies/recipes.toml --publish docs/results`.
"""

import json
from pathlib import Path

from clipwise.data import DATASETS, load

HERE = Path(__file__).parent
PAGE, RESULTS = HERE / "recipes.md", HERE / "results" / "recipes.jsonl"
BEGIN, END = "<!-- made by docs/make_recipes.py -->\n", "<!-- end -->"
PAPERS = {  # what the four papers have on the data set; at the same epsilon only where it says so
    "names": "DC-SGD, Table VIII, two LSTM layers: 55.1 to 55.6 at epsilon 2, 55.2 to 59.6 at 4",
    "ag_news": "Auto DP-SGD, Table 5, BiLSTM, all 120,000 records: DP-SGD 84.8 at epsilon 2, 85.6 at 5",
    "cifar10": "DC-SGD, Table VIII, ResNet18 from scratch: 48.1 to 48.9 at epsilon 2, 51.3 to 51.5 at 4",
    "fashion_mnist, autoencoder": "OSO-DPSGD, Figure 4, a picture without numbers",
}


def table() -> str:
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    rows = [
        "| `clipwise train` | model, trained parameters | method, batch, epochs, learning rate | test figure | epsilon | "
        "without privacy | papers |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for variant in dict.fromkeys(line["variant"] for line in lines):
        of = {line["target_epsilon"]: line for line in lines if line["variant"] == variant}
        private = next(line for epsilon, line in of.items() if epsilon is not None)
        data, model = private["data"], private["model"]
        recipe = DATASETS[data].recipe.chosen(model)
        asked = (
            f"`--data {data}`"
            if model == DATASETS[data].recipe.chosen(None).model
            else f"`--data {data} --model {model}`"
        )
        asked += ", " + variant.split(", ", 1)[1] if ", " in variant and "--model" not in asked else ""
        settings = f"{private['method']}, {recipe.expected_batch_size}, {private['epochs']}, {recipe.lr:g}"
        rows.append(
            f"| {asked} | {model}, {private['trained_parameters']:,} | {settings} | {figure(private)} | "
            f"{private['epsilon']:.3f} | {figure(of[None]) if None in of else ''} | {PAPERS.get(variant, '')} |"
        )
    return "\n".join(rows) + "\n"


def figure(line: dict) -> str:
    if line["accuracy"] is not None:
        return f"{100 * line['accuracy']:.2f} %"
    data = load(line["data"])
    mean = data.train.tensors[0].mean(0)
    return f"squared error {line['test_loss']:.4f} (of the mean image, for all: {(data.test.tensors[0] - mean).square().mean():.4f})"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1], encoding="utf-8")
