"""Where in a completion the answer stands: as it was asked for, or anywhere."""

import re
from itertools import pairwise

MOST_DIGITS = 1000
MOST_ITEMS = 1000

_MARKER = re.compile(r"answer[ \t]*\**[ \t]*:", re.IGNORECASE | re.ASCII)
_WHOLE = re.compile(rf"[+-]?(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]{{1,{MOST_DIGITS}}})")
# Whatever looks like a number, in any script and notation: read in whole or not at all.
_NUMBER = re.compile(r"(?<![\w.,])[+-]?[.]?\d[\w.,]*+(?:(?<=[eE])[+-]\w++)?")
_BESIDE = re.compile(r"(?:\s|,|;|/|\||&|\band\b|\bor\b)+", re.IGNORECASE)
_BRACKETED = re.compile(r"\[([^\[\]]*+)\]")
_SENTENCE_END = re.compile(r"(?<=[.?!:])\s+|\n+")
_LEAST_ECHO = 8  # characters; a shorter part of the prompt may well be said again


def visible(text: str) -> str:
    """The completion without a thinking part and without fenced code: an answer in there is not
    given to the reader. An unclosed one hides all that follows."""
    text = text.rpartition("</think>")[2].partition("<think>")[0]
    return "\n".join(text.split("```")[::2])


def asked(text: str, form: str) -> list[str]:
    """The answers in the asked-for format: [] for none; several where the text gives several.

    Args:
        form: `line`: what follows `Answer:` in its line; `bare`: the reply is the answer alone.
    """
    if form == "bare":
        content = _clean(text)
        return [content] if content else []
    marks = list(_MARKER.finditer(text))
    return [_clean(_line(text[mark.end() : mark.end() + 4000])) for mark in marks]


def after_marker(text: str) -> str | None:
    """All that follows the only `Answer:`, over several lines; None without exactly one."""
    parts = _MARKER.split(text, maxsplit=2)
    return parts[1].strip() if len(parts) == 2 and parts[1].strip() else None


def without_echo(text: str, prompt: "str | list[dict[str, str]]") -> str:
    """The text without the sentences it copies from the prompt."""
    if not isinstance(prompt, str):
        prompt = "\n".join(message["content"] for message in prompt)
    for part in _SENTENCE_END.split(prompt):
        if len(part.strip()) >= _LEAST_ECHO:
            text = text.replace(part.strip(), "\n")
    return text


def whole_number(content: str) -> int | None:
    """The whole number that the text is; None for anything else.

    >>> whole_number("-1,234"), whole_number("1e3"), whole_number("١٥"), whole_number("3 or 4")
    (-1234, None, None, None)
    """
    content = content.replace("−", "-")
    if len(content) > 2 * MOST_DIGITS or not _WHOLE.fullmatch(content):
        return None
    digits = content.replace(",", "")
    return int(digits) if len(digits) <= MOST_DIGITS + 1 else None


def items(content: str, whole: bool) -> list | None:
    """The list that the text is, in brackets or without; None where an item is no whole number.

    >>> items("[3, 5, 9]", whole=True), items("3 5 9", whole=True), items("3, x", whole=True)
    ([3, 5, 9], [3, 5, 9], None)
    """
    for left, right in ("[]", "()"):
        if content.startswith(left) and content.endswith(right):
            content = content[1:-1]
            break
    parts = content.split(",") if "," in content else content.split()
    parts = [part.strip().strip("'\"") for part in parts]
    if not parts or len(parts) > MOST_ITEMS or not all(parts):
        return None
    if not whole:
        return [plain_text(part) for part in parts]
    numbers = [whole_number(part) for part in parts]
    return None if None in numbers else numbers


def plain_text(content: str) -> str:
    """The text as texts are compared: case, runs of spaces and a last full stop do not count."""
    return " ".join(content.split()).removesuffix(".").casefold()


def last_number(text: str) -> int | None:
    """The last number that stands alone, if it is whole; one listed beside others does not count.

    >>> last_number("The largest of 3, 5 and 9 is 9."), last_number("14, 15 or 16")
    (9, None)
    >>> last_number("about 1.5e1"), last_number("15")
    (None, 15)
    """
    text = text.replace("−", "-")
    found = list(_NUMBER.finditer(text))
    beside = [
        not one.group().endswith(".")
        and _BESIDE.fullmatch(_gap(text, one.end(), two.start())) is not None
        for one, two in pairwise(found)
    ]
    alone = [
        one
        for one, before, after in zip(found, [False, *beside], [*beside, False], strict=False)
        if not before and not after
    ]
    if not alone:
        return None
    return whole_number(alone[-1].group().rstrip(".,"))


def last_list(text: str, whole: bool) -> list | None:
    """The last list: in brackets, or a line of its own, or what follows a colon."""
    bracketed = _BRACKETED.findall(text)
    if bracketed:
        return items(_clean(bracketed[-1]), whole)
    lines = [line for line in text.splitlines() if line.strip()]
    return items(_clean(lines[-1].rpartition(":")[2]), whole) if lines else None


def last_line_says(text: str, gold: str) -> str | None:
    """`gold` where the last line ends with it as words of their own, and not beside others in a
    list; else the line."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    line = plain_text(_clean(lines[-1]))
    before = line.removesuffix(gold)
    if before == line or not before:
        return line
    apart = not (before[-1].isalnum() and gold[0].isalnum())
    listed = re.search(r"(?:[,;/|&]|\b(?:and|or))\s*$", before)
    return gold if apart and not listed else line


def _gap(text: str, start: int, end: int) -> str:
    return text[start:end] if end - start <= 80 else "far"


def _line(text: str) -> str:
    lines = text.lstrip(" \t*").splitlines()
    return lines[0] if lines else ""


def _clean(content: str) -> str:
    """Without spaces and bold marks around it, and without a full stop."""
    return content.strip().strip("*").strip().removesuffix(".").rstrip()
