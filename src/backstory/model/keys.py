"""Keys as people write them."""

from collections.abc import Sequence


def key_text(names: Sequence[str], values: Sequence[object]) -> str:
    """A key as people write it: the value, or `a=1 b=2`; NULL is written NULL."""
    texts = ["NULL" if value is None else str(value) for value in values]
    if len(names) == 1:
        return texts[0]
    return " ".join(f"{name}={value}" for name, value in zip(names, texts, strict=True))


def key_of_words(names: Sequence[str], given: tuple[str, ...]) -> str | dict[str, str]:
    """The value of a key of one column, whatever is in it; else `name=value` for each column of `names`."""
    found = {}
    for word in given:
        known = max((name for name in names if word.startswith(f"{name}=")), key=len, default=None)
        name = word.partition("=")[0] if known is None else known
        if known is None and len(given) == 1 and (len(names) == 1 or name == word):
            return word
        found[name] = word[len(name) + 1 :]
    return found
