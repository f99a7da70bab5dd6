"""The language that the owner reads: what joining means, and what left.

A message is its English text; `de.po` and `fr.po` hold the translations, and the `.mo` files next
to them are what GNU gettext's `msgfmt` makes of them: a wheel needs no build step, and a test
compares the two. Outside of `in_language`, and where a message is missing, it is English; so are
errors, logs and everything for programs. Whatever the language, facts and numbers are the same: a
test compares every message of every catalogue, its placeholders included.
"""

from __future__ import annotations

import gettext
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ENGLISH: Final = "en"
LANGUAGES: Final = (ENGLISH, "de", "fr")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A language: its messages, and how it writes numbers."""

    code: str
    messages: gettext.NullTranslations
    decimal: str = "."
    group: str = ","


_ENGLISH: Final = Catalogue(ENGLISH, gettext.NullTranslations())
_current: ContextVar[Catalogue] = ContextVar("catalogue", default=_ENGLISH)


def say(message: str, /, **values: object) -> str:
    """A message in the current language, with its values."""
    text = _current.get().messages.gettext(message)
    return text.format(**values) if values else text


def say_count(count: int, one: str, many: str, /, **values: object) -> str:
    """The same of a number of things: `{count}` is the number."""
    text = _current.get().messages.ngettext(one, many, count)
    return text.format(count=number(count, ",d"), **values)


def message(text: str) -> str:
    """Marks a text that is said later, for those who look for what to translate."""
    return text


def number(value: float, form: str = "g") -> str:
    """A number with the decimal mark and the grouping of the language."""
    catalogue = _current.get()
    marks = {".": catalogue.decimal, ",": catalogue.group}
    return "".join(marks.get(sign, sign) for sign in format(value, form))


def current_language() -> str:
    return _current.get().code


@contextmanager
def in_language(language: str | Catalogue) -> Iterator[None]:
    """Everything said inside is in this language."""
    token = _current.set(load(language) if isinstance(language, str) else language)
    try:
        yield
    finally:
        _current.reset(token)


def load(code: str) -> Catalogue:
    """One of LANGUAGES; English needs no file."""
    if code == ENGLISH:
        return _ENGLISH
    with Path(__file__).with_name(f"{code}.mo").open("rb") as file:
        messages = gettext.GNUTranslations(file)
    return Catalogue(code, messages, ",", "\u00a0" if code == "fr" else ".")


def parse_language(value: Any) -> str:
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
