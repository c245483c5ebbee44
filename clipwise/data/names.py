"""Surnames by language, 18 of them: the data of PyTorch's char-RNN tutorial. Characters are the tokens."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np

from clipwise.data.source import Edition, File, Recipe, Source, Split, tuned
from clipwise.data.split import held_out
from clipwise.data.text import Characters
from clipwise.types import BadArgument

_SITE = "https://raw.githubusercontent.com/spro/practical-pytorch/master/data/names/"
_MOST_BYTES = 1024 * 1024  # of one file: far above the largest
_TABLE = {
    "Arabic": (13_190, "6f424a8dbe51cbbbabab7a57d38b617210125e4e3991f3c657cb79b8f104bafc"),
    "Chinese": (1_246, "09ba8f1f7e38dbc99372d461b26ad4433b811fc6bfa6a3ecca6fe11a9a777465"),
    "Czech": (3_916, "e17ab0ec47616a72c39cb85c783f70c3663ab64488721e5d8378f146d2226be7"),
    "Dutch": (2_351, "924f32b635170eae561f84538632138fc07d4c8bbd70ba3fb980de1ecc4d2af3"),
    "English": (27_125, "9cca037066d3d5989e24bc01801416162de506b5e28e15b7c092a47905d29bf2"),
    "French": (2_178, "81e65b36c60ed5b89a17422f6edcadbb89546f38ad69e960e64e7ba682012a95"),
    "German": (5_610, "7449cd590b97a733e18d613a4155decd77ec35dc5f8aadd7a82204dce4f051db"),
    "Greek": (1_981, "3555b5186de7f401e6d991b088e9e644ca3099116477818c25ab5793801389e6"),
    "Irish": (1_858, "cf8c7013256252a88d2503127b87282a11f21b2ff6db1bded68834c19a1ec058"),
    "Italian": (5_657, "f88414c27d0606a11a678b4859277828c2565d6cc4d9ee932deef6e94f3b35e4"),
    "Japanese": (7_622, "e0e717e114fec3e7eade4d9dabe0067c475f43147e36a22b47902ee76ad9e67f"),
    "Korean": (423, "cd54221ccb362a6cba4c78828838cf3268a0e59744767a37cf6ec4b74036b136"),
    "Polish": (1_165, "45bab898af2f60ed3a728bbf6980e28821011a7caa53227553b5785903a40826"),
    "Portuguese": (554, "50a8735f41f4f73757c8ce5b16cb0275cd86b2b214bcbc8c9805f508cb131c53"),
    "Russian": (85_168, "0cfe53ac18041e8f63666aa77313e0a3ff378facb132abee052d8ebdc8c3d62c"),
    "Scottish": (752, "78d0252711d87d948ea86fe34826c51d2d794a8e52d15b5d6f7b6244d45d62dd"),
    "Spanish": (2_284, "1bcb462ed3316756a85781d68232bddae04498fdddd5d9219c53fd1fbdeba7a7"),
    "Vietnamese": (339, "f3f9e4164ab47601178a6e45b216464a64122f49d05541f24bf18a757253281d"),
}
_FILES = {
    f"names/{language}.txt": File(sha256, size, (f"{_SITE}{language}.txt",))
    for language, (size, sha256) in _TABLE.items()
}


def read_names(root: Path) -> tuple[Split, Split]:
    """One name a line, one file a language; split by the name, so that no name is on both sides."""
    names: list[str] = []
    languages: list[int] = []
    for number, language in enumerate(_TABLE):
        path = root / "names" / f"{language}.txt"
        try:
            with path.open(encoding="utf-8") as handle:
                lines = handle.read(_MOST_BYTES).split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise BadArgument(f"{path} cannot be read ({error}); put a fresh copy there") from error
        found = [line.strip() for line in lines if line.strip()]
        names += found
        languages += [number] * len(found)
    y, aside = np.array(languages), held_out(names)
    train, test = (
        Split([name for name, chosen in zip(names, part, strict=True) if chosen], y[part]) for part in (~aside, aside)
    )
    return train, test


_ENCODER = Characters(string.ascii_letters + " .,;'-", length=20)

NAMES = Source(
    name="names",
    summary="surnames by language, a token a character",
    kind="sequence",
    licence="MIT (spro/practical-pytorch)",
    how_to_get="clipwise data get names",
    shape=(_ENCODER.length,),
    class_names=tuple(_TABLE),
    recipe=Recipe(model="lstm", expected_batch_size=1024, epochs=15, lr=1.0, method="auto-s"),
    tuning=tuned(3),
    notes=(
        "names: published without a test part; a fifth, by a hash of the name, is held out, so that no name is on both sides",
        "names: a name that is listed twice is two records",
    ),
    encoder=_ENCODER,
    fixed_encoder=True,
    editions=(Edition(_FILES, read_names, 15_994, 4_056),),
)
