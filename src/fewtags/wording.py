"""Words: counts, foreign text in sentences, singulars."""

from __future__ import annotations

import html


def plural(number: int, word: str, plural_word: str = "") -> str:
    """1 image, 2 images, 1,000 images; irregular plurals are passed in."""
    return f"{number:,} {word if number == 1 else plural_word or word + 's'}"


def printable(text: str) -> str:
    """Text of any origin as one line that every terminal and file takes; what cannot be shown becomes an escape."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def markdown(text: str) -> str:
    """Text of any origin in a line or a table's cell of Markdown: no markup, no line break."""
    text = html.escape(printable(text), quote=False)
    return "".join(f"\\{letter}" if letter in "\\`*_[]|" else letter for letter in text)


_PLURALS = (  # endings, and what they are in the singular
    ("ies", "y"), ("men", "man"), ("ves", "f"), ("ches", "ch"), ("shes", "sh"), ("ses", "s"), ("xes", "x"),
    ("zes", "z"), ("oes", "o"), ("s", ""),
)  # fmt: skip


def singulars(word: str) -> list[str]:
    """What an English word may be in the singular if it is a plural, by its ending. Whoever asks knows which exist."""
    forms = [word.removesuffix(plural) + one for plural, one in _PLURALS if word.endswith(plural)]
    return [form for form in forms if len(form) > 1]
