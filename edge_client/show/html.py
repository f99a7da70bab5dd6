"""Small parts of the owner's page: its style, and lists, rows and folds of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--ink:#26303a;--soft:#5d6975;--paper:#fbfbf9;--card:#fff;
--line:#e2e5e8;--accent:#2f6aa8;--fill:#dfeaf5;--warm:#b4530f}
@media(prefers-color-scheme:dark){:root{--ink:#dde3e9;--soft:#97a3af;--paper:#12161a;--card:#191f25;
--line:#2b333b;--accent:#86b7ea;--fill:#1e3348;--warm:#f0a05f}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:46rem;margin:0 auto;padding:2rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .3rem}
h2{font-size:1.45rem;line-height:1.25;margin:2.5rem 0 .2rem}
h3{font-size:1.05rem;margin:0 0 .5rem}
p{margin:.5rem 0}p,h2,li,dd,code{overflow-wrap:anywhere}.soft,dt{color:var(--soft)}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:1.1rem 1.3rem;margin:1rem 0}
.lead{font-size:1.12rem}.big{font-size:1.9rem;font-weight:600;color:var(--accent)}
code,.bytes{font:.86em ui-monospace,monospace}
.bytes b{color:var(--warm);font-weight:600}
.rows{list-style:none;margin:.4rem 0;padding:0}
.rows li{border-top:1px solid var(--line);padding:.5rem 0}
.rows li p{margin:.15rem 0}
.facts{display:flex;flex-wrap:wrap;gap:0 .8rem}.facts b{font-weight:600}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:.4rem 0}dd{margin:0}
ul{margin:.3rem 0;padding-left:1.2rem}
summary{cursor:pointer;color:var(--accent);padding:.25rem 0}
summary h3{display:inline;color:var(--ink)}
svg{display:block;width:100%;height:auto;margin:.8rem 0}
svg text{font:13px system-ui,sans-serif;fill:var(--soft)}svg .now{fill:var(--ink);font-weight:600}
svg .axis{stroke:var(--line)}svg .ceiling{stroke:var(--warm);stroke-dasharray:4 4}
svg .curve{fill:none;stroke:var(--accent);stroke-width:2}svg .spent{fill:var(--fill)}
svg .dot{fill:var(--accent);stroke:var(--card);stroke-width:2}
@media(max-width:34rem){main{padding:1.2rem .7rem 2rem}section{padding:.8rem .9rem;margin:.7rem 0}
body{font-size:15px;line-height:1.45}h1{font-size:1.4rem}h2{font-size:1.25rem;margin-top:1.6rem}
svg text{font-size:20px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.4rem}}
"""


def section(title: str, body: str) -> str:
    """A card with its title."""
    return f"<section><h3>{escape(title)}</h3>{body}</section>"


def folded_section(title: str, body: str) -> str:
    """A card that is opened by a touch; nothing runs for that."""
    return (
        f"<section><details><summary><h3>{escape(title)}</h3></summary>{body}</details></section>"
    )


def fold(summary: str, body: str) -> str:
    """More of a list, opened by a touch."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def paragraphs(texts: Iterable[str], kind: str = "") -> str:
    """Each text a paragraph."""
    named = f' class="{kind}"' if kind else ""
    return "".join(f"<p{named}>{escape(text)}</p>" for text in texts)


def sentence(text: str, kind: str) -> str:
    """A paragraph of our own words, in which `commands` stand out."""
    parts = escape(text).split("`")
    marked = "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))
    return f'<p class="{kind}">{marked}</p>'


def bullets(texts: Iterable[str]) -> str:
    """A list of texts."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def rows(items: Sequence[str]) -> str:
    """A list of rows that are HTML already; each is as wide as the window."""
    return f'<ol class="rows">{"".join(f"<li>{item}</li>" for item in items)}</ol>'


def facts(*texts: str) -> str:
    """What is known of one row, side by side as far as there is room; the first stands out."""
    first, *others = (escape(text) for text in texts)
    rest = "".join(f'<span class="soft">{text}</span>' for text in others)
    return f'<p class="facts"><b>{first}</b>{rest}</p>'


def terms(pairs: Iterable[tuple[str, str]]) -> str:
    """Names with what they mean; the second of a pair is HTML already."""
    return f"<dl>{''.join(f'<dt>{escape(n)}</dt><dd>{text}</dd>' for n, text in pairs)}</dl>"


def code(text: str) -> str:
    """A name or command, as it is."""
    return f"<code>{escape(text)}</code>"
