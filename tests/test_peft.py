"""Adapters of peft: on the fast path, and right, against the loop over single records."""

import pytest
import torch

from clipwise.lab.audit import architectures

peft = pytest.importorskip("peft")
pytest.importorskip("transformers")

TASKS = {"gpt2": "CAUSAL_LM", "llama": "CAUSAL_LM", "t5": "SEQ_2_SEQ_LM"}
TARGETS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "t5": ["q", "v"]}
INNER = {"gpt2": ["mlp.c_proj"], "llama": ["down_proj"], "t5": ["wo"]}


def adapter(kind, name):
    task = {"task_type": TASKS[name]}
    if kind == "ia3":
        both = TARGETS[name] + INNER[name]
        return peft.IA3Config(target_modules=both, feedforward_modules=INNER[name], init_ia3_weights=False, **task)
    if kind == "prefix":
        return peft.PrefixTuningConfig(num_virtual_tokens=3, **task)
    if kind == "prompt":
        return peft.PromptTuningConfig(num_virtual_tokens=3, **task)
    more = {"dora": {"use_dora": True}, "bias": {"bias": "all"}, "adalora": {}}.get(kind, {})
    if kind == "adalora":
        return peft.AdaLoraConfig(init_r=2, target_r=1, total_step=10, target_modules=TARGETS[name], **task)
    return peft.LoraConfig(r=2, target_modules=TARGETS[name], init_lora_weights=False, **more, **task)


def made(kind, name):
    task, _, cls = next(one for one in architectures.architectures() if one[1] == name)
    model = architectures.make(name, cls)
    torch.manual_seed(0)
    return peft.get_peft_model(model, adapter(kind, name)).double().eval(), architectures._batch(task)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("lora", "ia3", "prefix") for name in TASKS]
    + [("bias", "gpt2"), ("prompt", "llama"), ("dora", "gpt2")],
)
def test_an_adapter(kind, name):
    model, batch = made(kind, name)
    notices = []
    assert architectures.disagreement(model, batch, notices.append) < 1e-6
    assert bool(notices) == (kind in ("dora", "prompt")), notices


@pytest.mark.filterwarnings("ignore")
def test_a_loss_with_a_penalty_on_the_adapter_is_refused():
    model, batch = made("adalora", "llama")
    with pytest.raises(Exception, match=r"cannot be taken apart by record.*row_losses"):
        architectures.disagreement(model, batch, print)
