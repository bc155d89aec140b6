// Several studies side by side; one of them is shown below in detail.
// As many as have no factor in common with the inks: pairs of both repeat late.
const markers = ["circle", "square", "diamond", "triangle-up", "cross", "star-triangle-down", "hexagon"];
const isComparison = () => page.studies.length > 1;

function studyStyle(index) {
  const colour = colours();
  const inks = [colour.accent, colour.second, colour.third, colour.fourth];
  return {
    ink: inks[index % inks.length],
    symbol: markers[index % markers.length],
    dash: ["solid", "dash", "dot", "dashdot"][Math.floor(index / inks.length) % 4],
  };
}

function compareFigure() {
  if (!isComparison()) return null;
  const key = state.axis;
  const shown = page.studies.map((each, index) => ({
    each,
    style: studyStyle(index),
    front: each.fronts.find((front) => front.measure.key === key),
  })).filter(({ front }) => front?.trials.length);
  if (!shown.length) return { title: "Fronts side by side", note: "", empty: "No trial has finished yet." };
  const { measure } = shown[0].front;
  const traces = shown.flatMap(({ each, style, front }) => {
    const rows = front.trials.map((trial) => trialsOf(each).find((row) => row.trial === trial));
    const name = plain(each.name);
    return [
      {
        type: "scatter",
        mode: "lines",
        x: front.outline.map(([x]) => measure.factor * x),
        y: front.outline.map(([, y]) => metricFactor() * y),
        line: line(style.ink, style.dash),
        legendgroup: name,
        showlegend: false,
        hoverinfo: "skip",
      },
      {
        type: "scatter",
        mode: "markers",
        name,
        legendgroup: name,
        x: rows.map((row) => measure.factor * row[measure.key]),
        y: rows.map((row) => metricFactor() * row.metric),
        customdata: rows.map((row) => row.trial),
        marker: { color: style.ink, symbol: style.symbol, size: 9, line: { color: colours().card, width: 1 } },
        hovertemplate: `${name}, trial %{customdata}<br>%{y:.4~g} ${metricUnit()} at %{x:.2f} ${measure.unit}<extra></extra>`,
      },
    ];
  });
  const low = Math.min(...shown.map(({ front }) => front.view.metric[0]));
  const high = Math.max(...shown.map(({ front }) => front.view.metric[1]));
  const best =
    shown.map(({ each, front }) => [each.name, each.growth.area.at(-1) ?? 0, front]).sort((a, b) => b[1] - a[1])[0];
  const sameReference = new Set(shown.map(({ each }) => JSON.stringify(each.growth.reference))).size === 1;
  return {
    title: sameReference ? `${best[0]} covers the most` : "Fronts side by side",
    note: `The fronts of all studies, validation ${metric().name} against ${measure.name}.${
      sameReference ? "" : " Their areas count from different points and are not compared."
    }`,
    alt: `Fronts of ${page.studies.map((each) => each.name).join(", ")}.`,
    traces,
    layout: layout(isNarrow() ? 380 : 440, {
      uirevision: `compare ${key}`,
      xaxis: axis(`${measure.title}, ${measure.unit}`),
      yaxis: axis(metricAxis(), { range: [metricFactor() * low, metricFactor() * high] }),
    }),
  };
}

function compareGrowthFigure() {
  if (!isComparison()) return null;
  const shown = page.studies.map((each, index) => ({ each, style: studyStyle(index) })).filter(({ each }) =>
    each.growth.area.length
  );
  if (!shown.length) return null;
  return {
    title: "How fast each front grew",
    note: "Hypervolume over epochs trained.",
    alt: "Step chart of the fronts' areas.",
    traces: shown.map(({ each, style }) =>
      curve(plain(each.name), each.growth.epochs, each.growth.area, { ...line(style.ink, style.dash), shape: "hv" })
    ),
    layout: layout(320, {
      uirevision: "compare-growth",
      xaxis: axis("epochs trained", { rangemode: "tozero" }),
      yaxis: axis("area", { rangemode: "tozero" }),
    }),
  };
}

function showComparison() {
  for (const part of document.querySelectorAll('[data-when="compare"]')) part.hidden = !isComparison();
  if (!isComparison()) return;
  const hasMethods = new Set(page.studies.map((each) => each.method.name)).size > 1;
  const names = ["study", ...(hasMethods ? ["weights"] : []), "chosen", metric().name, "zeros", "vs dense", "trials"];
  const rows = page.studies.map((each, index) => {
    const chosen = each.model;
    const difference = chosen && isNumber(each.dense_metric)
      ? (metric(each).is_fraction
        ? (100 * (chosen.metric - each.dense_metric)).toFixed(2)
        : short(chosen.metric - each.dense_metric)).replace("-", "−")
      : "–";
    const complete = trialsOf(each).filter(isComplete).length;
    const cells = [
      ...(hasMethods ? [each.method.weights] : []),
      chosen ? `trial ${chosen.trial}${chosen.refit ? ` (refit ${chosen.refit})` : ""}` : "–",
      chosen ? shownMetric(chosen.metric, each) : "–",
      chosen ? percent(chosen.sparsity) : "–",
      difference,
      String(complete),
    ];
    return element(
      "tr",
      { class: index === state.study ? "selected" : null },
      element(
        "td",
        { class: "text" },
        element("button", { type: "button", onclick: () => showStudy(index) }, each.name),
      ),
      ...cells.map((cell) => element("td", {}, cell)),
    );
  });
  fill(
    byId("compare-table"),
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...rows),
    ),
  );
  fill(
    byId("study-picker"),
    ...page.studies.map((each, index) =>
      element("option", { value: index, selected: index === state.study }, each.name)
    ),
  );
}
