"""Architectures of the installed transformers, made small: the way that each is trained, against the loop over single records.

All of them: `python docs/make_hugging_face.py`, which writes the table of docs/hugging_face.md.
"""

from pathlib import Path

import pytest

from clipwise.lab.audit import architectures

pytest.importorskip("transformers")

ROOT = Path(__file__).parent.parent
FAST = [
    "bart",
    "bert",
    "distilbert",
    "electra",
    "falcon",
    "gemma",
    "gpt2",
    "gpt_neox",
    "llama",
    "mistral",
    "phi3",
    "qwen2",
]
FAST += ["roberta", "vit"]
GENERIC = ["nemotron"]


@pytest.mark.parametrize(("name", "verdict"), [(n, "fast") for n in FAST] + [(n, "generic") for n in GENERIC])
def test_an_architecture(name, verdict):
    (found,) = architectures.survey(lambda one: one == name)
    assert found.verdict == verdict, found


def test_a_wrong_gradient_would_be_seen(monkeypatch):
    from clipwise.norms.layers.linear import LinearKernel

    def only_wrong(kernel, *_):
        return {"ghost": lambda *args: _halved(kernel.direct_part(*args))}

    monkeypatch.setattr(LinearKernel, "candidates", only_wrong)
    (found,) = architectures.survey(lambda one: one == "bert")
    assert found.verdict == "wrong"


def _halved(part):
    part.squared_norms = part.squared_norms / 2
    return part
