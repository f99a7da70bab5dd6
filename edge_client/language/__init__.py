"""The language that the owner reads: what joining means, and what left.

A message is its English text; `de.po` and `fr.po` hold the others, in the format of GNU gettext
that translators' tools know. Without `speaking`, and where a message is missing, it is English; so
are errors, logs and everything for programs. Whatever the language, facts and numbers are the same:
a test compares every message of every catalogue, its placeholders included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ENGLISH: Final = "en"
LANGUAGES: Final = (ENGLISH, "de", "fr")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A language: its messages, how it writes numbers, and when it uses the singular."""

    code: str
    messages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    decimal: str = "."
    group: str = ","
    is_singular: Callable[[int], bool] = lambda count: count == 1


_ENGLISH: Final = Catalogue(ENGLISH)
_current: ContextVar[Catalogue] = ContextVar("catalogue", default=_ENGLISH)


def say(message: str, /, **values: object) -> str:
    """A message in the language that is spoken now, with its values."""
    (text,) = _current.get().messages.get(message, (message,))
    return text.format(**values) if values else text


def say_count(count: int, one: str, many: str, /, **values: object) -> str:
    """The same of a number of things: `{count}` is the number."""
    catalogue = _current.get()
    texts = catalogue.messages.get(one, (one, many))
    text = texts[0 if catalogue.is_singular(count) else 1]
    return text.format(count=number(count, ",d"), **values)


def message(text: str) -> str:
    """Marks a text that is said later, for those who look for what to translate."""
    return text


def number(value: float, form: str = "g") -> str:
    """A number with the decimal mark and the grouping of the language."""
    catalogue = _current.get()
    marks = {".": catalogue.decimal, ",": catalogue.group}
    return "".join(marks.get(sign, sign) for sign in format(value, form))


def spoken() -> str:
    """The code of the language that is spoken now."""
    return _current.get().code


@contextmanager
def speaking(language: str | Catalogue) -> Iterator[None]:
    """Everything said inside is in this language."""
    catalogue = language if isinstance(language, Catalogue) else load(language)
    token = _current.set(catalogue)
    try:
        yield
    finally:
        _current.reset(token)


def load(code: str) -> Catalogue:
    """A language that there is; English needs no file."""
    if code == ENGLISH:
        return _ENGLISH
    messages = read_catalogue(Path(__file__).with_name(f"{code}.po").read_text(encoding="utf-8"))
    if code == "fr":
        return Catalogue(code, messages, ",", "\u00a0", lambda count: count < 2)
    return Catalogue(code, messages, ",", ".")


def parse_language(value: Any) -> str:
    """The setting: a language that there is."""
    if str(value).lower() not in LANGUAGES:
        raise ValueError(f"must be one of {', '.join(LANGUAGES)}")
    return str(value).lower()


def language_of(environ: Mapping[str, str]) -> str:
    """The first of the locale's languages that there is, as gettext chooses; else English."""
    locale = next((v for n in ("LC_ALL", "LC_MESSAGES", "LANG") if (v := environ.get(n))), "C")
    if _code(locale) in ("c", "posix"):
        return ENGLISH
    wanted = [*environ.get("LANGUAGE", "").split(":"), locale]
    return next((code for name in wanted if (code := _code(name)) in LANGUAGES), ENGLISH)


def _code(locale: str) -> str:
    """`de` of `de_AT.UTF-8@euro`."""
    for mark in ("@", ".", "_", "-"):
        locale = locale.partition(mark)[0]
    return locale.lower()


def read_catalogue(text: str) -> dict[str, tuple[str, ...]]:
    """The messages of a `.po` file: each with one text, or with singular and plural."""
    found: dict[str, tuple[str, ...]] = {}
    entry: list[tuple[str, str]] = []
    for line in [*text.splitlines(), 'msgid ""']:
        keyword, _, quoted = line.partition(" ")
        if keyword == "msgid" and entry:
            found[entry[0][1]] = tuple(t for name, t in entry if name.startswith("msgstr"))
            entry = []
        if keyword.startswith("msg"):
            entry.append((keyword, _unquoted(quoted)))
        elif line.startswith('"'):
            entry[-1] = (entry[-1][0], entry[-1][1] + _unquoted(line))
    found.pop("", None)  # the header
    return {original: texts for original, texts in found.items() if all(texts)}


def _unquoted(text: str) -> str:
    inner = text.strip()[1:-1]
    return inner.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
