"""What each process does in tests/test_trainer_ranks.py: `torchrun ... trainer_worker.py FOLDER STEP`.

A PrivateTrainer goes on from the newest checkpoint, if there is one; before torchrun's first restart the last process dies after
that step.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import transformers

import clipwise

RECORDS, STEPS, BATCH = 96, 8, 16


def trainer(folder, processes=1, callbacks=()):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(1, 30, (RECORDS, 6), generator=generator)
    data = [{"input_ids": x, "attention_mask": torch.ones_like(x), "labels": (x[0] > 15).long()} for x in words]
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    small |= {"vocab_size": 30, "max_position_embeddings": 8}
    small |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # so that all draw alike
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**small))
    named = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": BATCH // (4 * processes)}
    named |= {"max_steps": STEPS, "save_steps": 3, "learning_rate": 1e-2, "report_to": [], "use_cpu": True}
    args = transformers.TrainingArguments(str(folder), disable_tqdm=True, **named)
    more = {"train_dataset": data, "eval_dataset": data[:16], "callbacks": list(callbacks)}
    return clipwise.hf.PrivateTrainer(model, args, **more, epsilon=8.0, delta=1e-3, seed=3)


def found(one):
    return {
        "weights": torch.cat([p.detach().flatten() for p in one.model.parameters()]).tolist(),
        "steps": one.statement().steps,
        "epsilon": one.epsilon(),
        "notes": one.statement().notes,
        "expected": one.statement().expected_batch_size,
        "eval_loss": one.evaluate()["eval_loss"],
    }


class DieAt(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):  # noqa: ARG002
        if state.global_step == self.step:
            os._exit(9)


def main(folder, step):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    one = trainer(folder, size, [DieAt(int(step))] if first and rank == size - 1 else [])
    one.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))
    one.create_model_card()
    (Path(folder) / f"{rank}.json").write_text(json.dumps({**found(one), "restarted": not first}))


if __name__ == "__main__":
    main(*sys.argv[1:])
