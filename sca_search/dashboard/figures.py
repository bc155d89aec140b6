"""DashboardData -> plotly figures; the only place that knows colours and positions."""

import html

import plotly.graph_objects as go

from sca_search.dashboard.data import DashboardData, FrontPoint, FrontView, front_outline, front_view

ACCENT = "#0f766e"
ACCENT_TINT = "rgba(15, 118, 110, 0.07)"
INK = "#1f2937"
QUIET = "#6b7280"
FAINT = "#9ca3af"
GRID = "#eef0f3"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_HOVER = "trial %{customdata}<br>sparsity %{x:.2f} %<br>accuracy %{y:.2f} %<extra></extra>"


def front_figure(data: DashboardData) -> go.Figure:
    """Accuracy against sparsity: all trials, the front, the chosen one, the target, the dense network."""
    figure = go.Figure([_outline(data), _trials(data), _front(data)], _front_layout(data))
    if data.chosen is not None:
        _mark_chosen(figure, data.chosen)
    if data.target_sparsity is not None:
        _mark_target(figure, 100 * data.target_sparsity, front_view(data))
    if data.dense_accuracy is not None:
        _mark_dense(figure, data.dense_accuracy)
    return figure


def layers_figure(data: DashboardData) -> go.Figure:
    """The share of zeros in each ternary layer of the chosen model, in the order of execution from the top."""
    sparsities = [100 * layer.sparsity for layer in data.layers]
    bars = go.Bar(
        # Bars are placed by index: two layers of one name must not fall on each other.
        y=list(range(len(data.layers))),
        x=sparsities,
        orientation="h",
        width=0.66,
        marker={"color": ACCENT, "opacity": 0.85},
        text=[f"{share:.1f} %" for share in sparsities],
        textposition="outside",
        textfont={"size": 12, "color": INK},
        cliponaxis=False,
        customdata=[layer.weights for layer in data.layers],
        hovertemplate="%{customdata:,} weights<br>sparsity %{x:.2f} %<extra></extra>",
    )
    return go.Figure([bars], _layers_layout(data))


def _outline(data: DashboardData) -> go.Scatter:
    corners = front_outline(data.front)
    return go.Scatter(
        x=[100 * sparsity for sparsity, _ in corners],
        y=[100 * accuracy for _, accuracy in corners],
        mode="lines",
        line={"color": ACCENT, "width": 2, "shape": "vh"},  # first down, then level: see front_outline
        fill="tozeroy",
        fillcolor=ACCENT_TINT,
        hoverinfo="skip",
        showlegend=False,
    )


def _trials(data: DashboardData) -> go.Scatter:
    return _markers(data.points, "all trials", {"color": FAINT, "size": 7, "opacity": 0.55})


def _front(data: DashboardData) -> go.Scatter:
    marker = {"color": ACCENT, "size": 9, "line": {"color": "white", "width": 1.5}}
    return _markers(data.front, "Pareto front", marker)


def _mark_chosen(figure: go.Figure, chosen: FrontPoint) -> None:
    marker = {"color": ACCENT, "size": 19, "symbol": "star", "line": {"color": "white", "width": 1.5}}
    figure.add_trace(_markers((chosen,), "chosen", marker))
    # Above and to the right of a point of the front there is never another trial. The right margin is
    # wide enough for this label where the point lies on the border.
    figure.add_annotation(
        x=100 * chosen.sparsity,
        y=100 * chosen.accuracy,
        text=f"<b>trial {chosen.trial}</b>",
        showarrow=False,
        xanchor="left",
        yanchor="bottom",
        xshift=8,
        yshift=4,
        font={"color": ACCENT, "size": 13},
    )


def _mark_target(figure: go.Figure, target: float, view: FrontView) -> None:
    left, right = view.sparsity
    figure.add_vline(
        x=target,
        line={"color": QUIET, "width": 1.5, "dash": "dash"},
        layer="below",
        annotation={
            "text": f"target {target:.4g} %",
            "textangle": 0,
            "font": {"color": QUIET, "size": 12},
            "yanchor": "bottom",
            "xanchor": "right" if target > (left + right) / 2 else "left",
        },
        annotation_position="bottom",
    )


def _mark_dense(figure: go.Figure, dense_accuracy: float) -> None:
    figure.add_hline(
        y=100 * dense_accuracy,
        line={"color": QUIET, "width": 1.25, "dash": "dot"},
        layer="below",
        annotation={
            "text": f"dense network {100 * dense_accuracy:.2f} %",
            "font": {"color": QUIET, "size": 12},
        },
        annotation_position="top right",
    )


def _markers(points: tuple[FrontPoint, ...], name: str, marker: dict[str, object]) -> go.Scatter:
    return go.Scatter(
        x=[100 * point.sparsity for point in points],
        y=[100 * point.accuracy for point in points],
        customdata=[point.trial for point in points],
        mode="markers",
        name=name,
        marker=marker,
        hovertemplate=_HOVER,
    )


def _front_layout(data: DashboardData) -> go.Layout:
    view = front_view(data)
    layout = _layout(height=480, margin={"l": 64, "r": 64, "t": 44, "b": 56})
    layout.update(
        xaxis={**_axis("sparsity: share of zero weights, %"), "range": list(view.sparsity)},
        yaxis={**_axis("validation accuracy, %"), "range": list(view.accuracy)},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "itemsizing": "trace"},
        hovermode="closest",
    )
    return layout


def _layers_layout(data: DashboardData) -> go.Layout:
    layout = _layout(height=84 + 28 * max(len(data.layers), 1), margin={"l": 16, "r": 56, "t": 12, "b": 52})
    layout.update(
        xaxis={**_axis("zero weights, %"), "range": [0, 100]},
        yaxis={
            "autorange": "reversed",
            "tickmode": "array",
            "tickvals": list(range(len(data.layers))),
            # plotly reads tick labels as a small HTML; a layer's name is only a name.
            "ticktext": [html.escape(layer.name) + "  " for layer in data.layers],
            "automargin": True,
            "showgrid": False,
        },
    )
    return layout


def _layout(**more: object) -> go.Layout:
    return go.Layout(
        template="none",
        paper_bgcolor="white",
        plot_bgcolor="white",
        font={"family": FONT, "size": 13, "color": INK},
        hoverlabel={"bgcolor": "white", "bordercolor": FAINT, "font": {"color": INK}},
        **more,
    )


def _axis(title: str) -> dict[str, object]:
    return {
        "title": {"text": title, "font": {"size": 13, "color": QUIET}, "standoff": 12},
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": FAINT,
        "ticks": "outside",
        "tickcolor": FAINT,
        "ticklen": 4,
    }
