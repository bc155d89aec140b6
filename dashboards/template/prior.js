// The prior: α against sparsity per layer, and planned against achieved sparsity.
function alphaFigure() {
  const { prior } = study();
  const layer = state.layer;
  if (!layer) {
    return {
      title: "α against sparsity",
      note: "Written once the dense network is trained.",
      empty: "The prior is not known yet.",
    };
  }
  const colour = colours();
  const percentages = prior.closed?.sparsity.map((sparsity) => 100 * sparsity) ?? [];
  const traces = [];
  const alphas = prior.closed?.alpha[layer];
  if (alphas) {
    traces.push(
      curve("closed form", percentages, alphas, line(colour.accent), {
        hovertemplate: "closed form: α %{y:.3f} for %{x:.1f} %<extra></extra>",
      }),
    );
  }
  const ended = prior.ended[layer] ?? [];
  const marks = (name, rows, marker) => ({
    type: "scatter",
    mode: "markers",
    name,
    x: rows.map((row) => 100 * row[1]),
    y: rows.map((row) => row[2]),
    customdata: rows.map((row) => row[0]),
    marker,
    hovertemplate: "trial %{customdata}: α %{y:.3f} gave %{x:.2f} %<extra></extra>",
  });
  if (ended.length) {
    traces.push(
      marks("achieved by trials", ended, { color: colour.third, size: 7, opacity: 0.75, symbol: "diamond" }),
    );
  }
  const mine = ended.filter((row) => row[0] === state.trial);
  if (mine.length) {
    traces.push({
      ...marks("this trial", mine, { color: colour.ink, size: 18, symbol: "circle-open", line: { width: 2 } }),
      showlegend: false,
    });
  }
  const spread = prior.closed
    ? ` The line is for a spread of ${
      short(prior.closed.spread)
    } before training; trials have their own, and α follows the weights where it is tracked.`
    : "";
  return {
    title: `The sparser ${layer} is to be, the larger its α`,
    note: `α sets how wide the basin around zero is: α(s) = 2 tanh²(Q), Q the s-quantile of |Θ|.${spread}`,
    alt: `α against sparsity for ${layer}: the closed form rises${
      alphas ? ` from ${short(alphas[0])} to ${short(alphas.at(-1))}` : ""
    }; ${counted(ended.length, "trial")}.`,
    traces,
    layout: layout(320, {
      uirevision: `alpha ${layer}`,
      xaxis: axis(`zeros in ${plain(layer)}, %`, { range: [-1, 101] }),
      yaxis: axis("α", { rangemode: "tozero" }),
    }),
  };
}

function achievedFigure() {
  const { prior } = study();
  const pairs = Object.entries(prior.achieved).filter(([, rows]) => rows.length);
  if (!pairs.length) {
    return {
      title: prior.headline,
      note: "Planned against achieved sparsity, one point per layer and trial.",
      empty: "No trial has finished yet.",
    };
  }
  const colour = colours();
  const marks = (name, rows, marker) => ({
    type: "scatter",
    mode: "markers",
    name,
    x: rows.map((row) => 100 * row[0]),
    y: rows.map((row) => 100 * row[1]),
    marker,
    hovertemplate: "planned %{x:.2f} %, achieved %{y:.2f} %<extra></extra>",
  });
  const others = pairs.filter(([layer]) => layer !== state.layer).flatMap(([, rows]) => rows);
  const mine = prior.achieved[state.layer] ?? [];
  const traces = [
    curve("equal", [0, 100], [0, 100], line(colour.quiet, "dot", 1.25), { hoverinfo: "skip", mode: "lines" }),
    ...(others.length ? [marks("other layers", others, { color: colour.faint, size: 6, opacity: 0.6 })] : []),
    marks(plain(state.layer), mine, { color: colour.third, size: 7, symbol: "diamond" }),
  ];
  return {
    title: prior.headline,
    note: "Planned sparsity per layer, and the sparsity that rounding alone achieved, before the exact step.",
    alt: `Scatter plot of planned against achieved sparsity; ${prior.headline}.`,
    traces,
    layout: layout(320, {
      uirevision: "achieved",
      xaxis: axis("planned, %", { range: [-2, 102] }),
      yaxis: axis("achieved, %", { range: [-2, 102] }),
    }),
  };
}

function showLayerPicker() {
  const { layers } = study().prior;
  if (!layers.includes(state.layer)) state.layer = layers[0] ?? null;
  const picker = byId("layer-picker");
  fill(picker, ...layers.map((layer) => element("option", { value: layer, selected: layer === state.layer }, layer)));
  picker.disabled = layers.length < 2;
}
