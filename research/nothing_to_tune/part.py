"""A chosen part of a study, with the runner of `clipwise study` (which would run all that is missing).

    python research/nothing_to_tune/part.py STUDY FOLDER --variants "sgd, *;adam, *" --tasks "digits, mlp" --epsilons 3 --seeds 1,2 --top 3

--top N: of each cell (task and epsilon) the N of these variants that are best there with seed 0, by what FOLDER has.
"""

import argparse
import dataclasses
import json
import time
from fnmatch import fnmatch
from pathlib import Path

from clipwise.lab.study.definition import read_study
from clipwise.lab.study.runner import Watcher, run_study


class Said(Watcher):
    def ended(self, outcome):
        c, figures = outcome.trial.config, outcome.line or {}
        figure = figures.get("accuracy", figures.get("errors"))
        print(time.strftime("%H:%M:%S"), outcome.trial.variant, c.data, c.model, c.epsilon, c.seed, figure, (outcome.error or "")[-300:],
              round(outcome.seconds, 1), flush=True)  # fmt: skip


def named(variant, patterns):
    return any(fnmatch(variant, pattern) for pattern in patterns)


def best(lines, trial, variants, count):
    c = trial.config
    here = [
        x for x in lines if (x["data"], x["model"], x["target_epsilon"], x["seed"]) == (c.data, c.model, c.epsilon, 0)
    ]
    here = [x for x in here if named(x["variant"], variants)]
    return [x["variant"] for x in sorted(here, key=lambda x: -x["accuracy"])[:count]]


def main():
    words = argparse.ArgumentParser()
    words.add_argument("study"), words.add_argument("folder", type=Path)
    for name in ("variants", "tasks", "epsilons", "seeds"):
        words.add_argument(f"--{name}", default="*" if name == "variants" else "")
    words.add_argument("--top", type=int, default=0)
    asked = words.parse_args()
    study = read_study(Path(asked.study), check=False)
    variants, tasks = asked.variants.split(";"), [*filter(None, asked.tasks.split(";"))]
    seeds, epsilons = [int(s) for s in asked.seeds.split(",") if s], [float(e) for e in asked.epsilons.split(",") if e]
    done = asked.folder / "results.jsonl"
    lines = [json.loads(line) for line in done.read_text().splitlines()] if done.exists() else []
    chosen = []
    for trial in study.trials:
        c = trial.config
        wanted = named(trial.variant, variants) and (not tasks or f"{c.data}, {c.model}" in tasks)
        wanted = wanted and (not seeds or c.seed in seeds) and (not epsilons or c.epsilon in epsilons)
        if wanted and (not asked.top or trial.variant in best(lines, trial, variants, asked.top)):
            chosen.append(trial)
    if tasks:
        chosen.sort(key=lambda trial: tasks.index(f"{trial.config.data}, {trial.config.model}"))
    print(f"{len(chosen)} of {len(study.trials)} runs", flush=True)
    run_study(dataclasses.replace(study, trials=tuple(chosen)), asked.folder, jobs=1, watcher=Said())


if __name__ == "__main__":
    main()
