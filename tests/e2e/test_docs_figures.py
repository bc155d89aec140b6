"""The figures of the documentation: their data, their drawing, and that the files are up to date."""

import importlib.util
import sys
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.markdown_page import DOCS


def figures_module() -> Any:
    spec = importlib.util.spec_from_file_location("docs_figures", DOCS / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_ticks_are_round_and_enclose_all_values() -> None:
    ticks = figures_module().ticks
    assert ticks(-3.9, 3.6) == [-4, -3, -2, -1, 0, 1, 2, 3, 4]
    assert ticks(0.0, 1.62) == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75]


def test_svg_is_well_formed_and_labeled() -> None:
    figures = figures_module()
    chart = figures.Chart("A < B", "x", "y", (figures.Curve("one & two", [(0.0, 0.0), (1.0, 2.0)], marked=True),))
    texts = [element.text for element in ElementTree.fromstring(figures.svg(chart)).iter() if element.text]
    assert {"A < B", "x", "y", "one & two"} <= set(texts)


def test_flow_curves_separate_the_weights_on_both_sides_of_the_border() -> None:
    """With α = ½ the border is at Θ = atanh ½ = 0.549. The value at u = 3 is computed by hand."""
    curves = figures_module().flow_curves()
    below, above = ([curve.points[place][1] for curve in curves] for place in (250, 260))  # Θ = 0.5 and 0.6
    assert below == sorted(below, reverse=True)
    assert above[:2] == sorted(above[:2])
    assert below[2] == pytest.approx((4.6828 + 19.0855 / 0.25 * (0.25 / 0.21355 - 1)) ** -0.5, rel=1e-3)
    assert above[-1] == pytest.approx(1.0, abs=1e-6)


@pytest.fixture(scope="module")
def charts() -> dict[str, Any]:
    """The data of the figures, from half a minute of training."""
    return figures_module().charts()


@pytest.mark.nightly
def test_figures_are_those_of_the_program(charts: dict[str, Any]) -> None:
    drawn = {path.name for pattern in ("prior-*.svg", "decoupled-*.svg") for path in DOCS.glob(pattern)}
    assert drawn == charts.keys()
    for name, chart in charts.items():
        texts = {element.text for element in ElementTree.parse(DOCS / name).getroot().iter() if element.text}
        assert {chart.title, chart.x, chart.y, *(curve.name for curve in chart.curves)} <= texts, name


@pytest.mark.nightly
def test_prior_is_monotone_and_accurate_with_a_large_lambda(charts: dict[str, Any]) -> None:
    for curve in charts["prior-alpha.svg"].curves:
        alphas = [alpha for _, alpha in curve.points]
        assert alphas == sorted(alphas)
    error = {curve.name: max(abs(points) for _, points in curve.points) for curve in charts["prior-landing.svg"].curves}
    assert error["large λ"] < 0.5 < error["small λ"]
