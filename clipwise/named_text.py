"""Options written as one line of text, `name:key=value,key=value`: losses and learning-rate schedules are given so."""

from __future__ import annotations

from clipwise.types import BadArgument


def split_text(argument: str, text: object, example: str) -> tuple[str, dict[str, str]]:
    """The name and its options, still as words; `argument` and `example` are for the error."""
    if not isinstance(text, str) or not text.strip():
        raise BadArgument(f"{argument}={text!r} is not a name; write it like {example}")
    name, _, rest = text.strip().partition(":")
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, word = (piece.strip() for piece in part.partition("="))
        if not (key and equals and word):
            raise BadArgument(f"{argument}={text!r}: {part!r} is not understood; write it like {example}")
        if key in options:
            raise BadArgument(f"{argument}={text!r}: {key} is given twice; give it once")
        options[key] = word
    return name.strip(), options


def number(argument: str, key: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise BadArgument(f"{argument}: {key}={word!r} is not a number; give one, such as {key}=0.5") from None


def whole(argument: str, key: str, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise BadArgument(f"{argument}: {key}={word!r} is not a whole number; give one, such as {key}=10") from None


def numbers(argument: str, key: str, word: str) -> tuple[float, ...]:
    """Several numbers with a slash between them."""
    return tuple(number(argument, key, part) for part in word.split("/"))


def refuse_unknown(argument: str, name: str, given: dict[str, str], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise BadArgument(f"{argument}={name!r} has no option {key!r}; {has}")
