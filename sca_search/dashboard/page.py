"""DashboardData -> one HTML file that opens without a network: plotly.js, style and figures inside."""

from html import escape
from importlib import resources
from pathlib import Path
from string import Template

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from sca_search.dashboard.data import DashboardData, FrontPoint, front_view, table_rows
from sca_search.dashboard.figures import front_figure, layers_figure

_CHECKOUT = Path(__file__).parents[2] / "dashboards" / "template"


def render_page(data: DashboardData) -> str:
    """The whole page as text; everything that a user could have named is escaped."""
    return Template(_template("page.html")).substitute(
        title=escape(data.title),
        style=_template("style.css"),
        plotly=get_plotlyjs() if data.points or data.layers else "",
        lead=escape(lead(data)),
        front=_front_section(data),
        summary=_summary_section(data),
        layers=_layers_section(data),
        table=_table_section(data),
    )


def lead(data: DashboardData) -> str:
    """The result in a sentence or two."""
    target = "" if data.target_sparsity is None else f" (target {_percent(data.target_sparsity)})"
    if not data.points:
        return f"No trial has finished yet{target}."
    if data.chosen is None:
        finished = "1 trial has" if len(data.points) == 1 else f"{len(data.points)} trials have"
        return f"{finished} finished; none is chosen yet{target}."
    return (
        f"Trial {data.chosen.trial} reaches {_percent(data.chosen.accuracy)} validation accuracy "
        f"with {_percent(data.chosen.sparsity)} of its weights at zero{target}"
        f"{_against_dense(data.chosen, data.dense_accuracy)}."
    )


def _against_dense(chosen: FrontPoint, dense_accuracy: float | None) -> str:
    if dense_accuracy is None:
        return ""
    points = 100 * (chosen.accuracy - dense_accuracy)
    if abs(points) < 0.005:  # would be shown as 0.00
        return ", as much as the dense network"
    return f", {abs(points):.2f} points {'above' if points > 0 else 'below'} the dense network"


def _front_section(data: DashboardData) -> str:
    if not data.points:
        return ""
    label = "Validation accuracy against sparsity, all trials and the Pareto front"
    figure = _figure("front", label, front_figure(data))
    return _section("Accuracy against sparsity", figure + _note(front_view(data).below))


def _note(below: int) -> str:
    if not below:
        return ""
    lie = "1 trial lies" if below == 1 else f"{below} trials lie"
    return f'\n<p class="note">{lie} far below the front; a double click in the figure shows all.</p>'


def _layers_section(data: DashboardData) -> str:
    if not data.layers:
        return ""
    label = "Sparsity of each layer of the chosen model"
    return _section("Zeros by layer, chosen model", _figure("layers", label, layers_figure(data)))


def _summary_section(data: DashboardData) -> str:
    if not data.summary:
        return ""
    items = "\n".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in data.summary)
    return _section("Study", f"<dl>\n{items}\n</dl>")


def _table_section(data: DashboardData) -> str:
    rows = table_rows(data)
    if not rows:
        return ""
    names = ("trial", "planned sparsity", "sparsity", "validation accuracy", "against dense", "")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "\n".join(_table_row(point, data) for point in rows)
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    return _section("Trials on the front", table)


def _table_row(point: FrontPoint, data: DashboardData) -> str:
    dense = data.dense_accuracy
    cells = (
        str(point.trial),
        _percent(point.planned_sparsity),
        _percent(point.sparsity),
        _percent(point.accuracy),
        "–" if dense is None else f"{100 * (point.accuracy - dense):+.2f}".replace("-", "−"),
        _mark(point, data),
    )
    row = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr class="chosen">{row}</tr>' if point == data.chosen else f"<tr>{row}</tr>"


def _mark(point: FrontPoint, data: DashboardData) -> str:
    if point != data.chosen:
        return ""
    return "★ chosen" if point in data.front else "★ chosen, not on the front"


def _section(heading: str, content: str) -> str:
    return f'<section class="card">\n<h2>{heading}</h2>\n{content}\n</section>'


def _figure(name: str, label: str, figure: go.Figure) -> str:
    # plotly escapes "<" itself; a second time costs nothing and does not hang on its version.
    content = str(figure.to_json()).replace("<", "\\u003c")
    return (
        f'<div class="figure" id="{name}" role="img" aria-label="{label}"></div>\n'
        f'<script type="application/json" data-figure="{name}">{content}</script>'
    )


def _percent(share: float) -> str:
    return "–" if share != share else f"{100 * share:.2f}\N{NO-BREAK SPACE}%"  # noqa: PLR0124 (NaN)


def _template(name: str) -> str:
    """A file of the template: inside an installed package, else in the checkout around this file."""
    packaged = resources.files("sca_search.dashboard") / "template" / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (_CHECKOUT / name).read_text(encoding="utf-8")
