"""The notebook is the tutorial, cell by cell; that its cells run is tested in tests/system."""

from __future__ import annotations

import json

import pytest

from tests.support.docs import read
from tests.support.notebook import agrees
from tutorial_notebook import BASH, HERE, NOTEBOOK, TUTORIAL, Cell, cells, notebook


def test_the_notebook_is_what_the_tutorial_says() -> None:
    """If this fails: python scripts/tutorial_notebook.py"""
    assert read(NOTEBOOK) == notebook(read(TUTORIAL))


def test_blocks_become_cells_with_what_they_print() -> None:
    text = (
        "# Title\n\n```sh\nls\n```\n\n```\na file\n```\n\ntext\n\n```console\n$ one\nfirst\n"
        "$ two\n```\n\n```python\nprint(1)\n```\n\n```sh for-real\nrun\n```\n"
    )
    first, title, listing, middle, both, python, last = cells(text)
    assert first == Cell(HERE, code=True)
    assert title.source == "# Title\n\n"
    assert listing == Cell(BASH + "ls\n", code=True, printed="a file\n")
    assert middle.source.strip() == "text"
    assert both == Cell(BASH + "one\ntwo\n", code=True, printed="first\n")
    assert python == Cell("print(1)\n", code=True)
    assert last == Cell("\n```sh for-real\nrun\n```\n")


def test_a_notebook_is_of_the_form_that_jupyter_reads() -> None:
    made = json.loads(read(NOTEBOOK))
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])
    code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    assert all({"outputs", "execution_count", "source", "metadata"} <= cell.keys() for cell in code)


@pytest.mark.parametrize(
    ("printed", "told", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\n", False),
        ("in 0.3 s\n", "in [...] s\n", True),
        ("in 0.3 h\n", "in [...] s\n", False),
        ("a\nb\nc\n", "a\n[...]\nc\n", True),
        ("anything", "", True),
    ],
)
def test_what_may_differ_is_left_out(printed: str, told: str, same: bool) -> None:
    assert agrees(printed, told) is same
