// The selected trial by layer: achieved and planned sparsity, and costs.
const TALLEST = 640;
const barsHeight = (count) => Math.min(TALLEST, 70 + Math.max(count, 3) * 26);

const namesAxis = (layers) =>
  axis("", {
    tickmode: "array",
    tickvals: layers.map((_, index) => index),
    ticktext: layers.map((layer) => `${plain(layer.name)}\u2002`),
    range: [layers.length - 0.5, -0.5],
    showgrid: false,
    showline: false,
    ticks: "",
  });

function barTrace(layers, values, texts) {
  const colour = colours();
  return {
    type: "bar",
    orientation: "h",
    y: layers.map((_, index) => index),
    x: values,
    width: 0.66,
    marker: { color: colour.accent },
    text: texts,
    textposition: "auto",
    insidetextanchor: "end",
    textfont: { size: 11 },
    textangle: 0,
    insidetextfont: { color: colour.card },
    outsidetextfont: { color: colour.ink },
    hovertemplate: layers.map((layer, index) =>
      `${plain(layer.name)}<br>${layer.weights.toLocaleString("en")} weights<br>${texts[index]}<extra></extra>`
    ),
    showlegend: false,
  };
}

function layersFigure() {
  const detail = detailOf(state.trial);
  if (!detail) return null;
  const sparsities = detail.layers.map((layer) => layer.sparsity);
  const [least, most] = [Math.min(...sparsities), Math.max(...sparsities)];
  const title = most - least < 0.005
    ? "All layers have the same sparsity"
    : `Sparsity of the layers: ${percent(least, 1)} to ${percent(most, 1)}`;
  const dead = detail.dead_layers.length ? ` Layers without non-zeros: ${detail.dead_layers.join(", ")}.` : "";
  const layers = detail.layers;
  const planned = {
    type: "scatter",
    mode: "markers",
    name: "planned",
    showlegend: false,
    x: layers.map((layer) => (isNumber(layer.planned) ? 100 * layer.planned : null)),
    y: layers.map((_, index) => index),
    marker: { symbol: "line-ns", size: 15, line: { color: colours().second, width: 2.5 } },
    hovertemplate: "planned %{x:.2f} %<extra></extra>",
  };
  const texts = layers.map((layer) => percent(layer.sparsity, 1));
  return {
    title,
    note: `Sparsity per ternary layer, in order of execution; vertical marks: planned.${dead}`,
    alt: `Bar chart of zeros: ${layers.map((layer, index) => `${layer.name} ${texts[index]}`).join(", ")}.`,
    traces: [barTrace(layers, layers.map((layer) => 100 * layer.sparsity), texts), planned],
    layout: layout(barsHeight(layers.length), {
      uirevision: "layers",
      margin: { l: 60, r: 20, t: 8, b: 40 },
      xaxis: axis("zeros, %", { range: [0, 102] }),
      yaxis: namesAxis(layers),
      bargap: 0.3,
    }),
  };
}

// Costs per layer: those that every ternary layer was counted or measured for.
function costFigure() {
  const layers = detailOf(state.trial)?.layers;
  if (!layers) return null;
  const costs = study().costs.filter(({ key }) => layers.some((layer) => isNumber(layer[key])));
  if (!costs.length) {
    return {
      title: "Costs per layer",
      note: "Size and time per ternary layer.",
      empty: "No cost of this trial was counted per layer.",
    };
  }
  const traces = costs.map((cost, index) => ({
    ...barTrace(
      layers,
      layers.map((layer) => (layer[cost.key] ?? 0) / cost.scale),
      layers.map((layer) => shownCost(cost, layer[cost.key])),
    ),
    xaxis: index ? `x${index + 1}` : "x",
  }));
  const total = (cost) => layers.reduce((sum, layer) => sum + (layer[cost.key] ?? 0), 0);
  const named = costs.map((cost) => `${cost.label} ${shownCost(cost, total(cost))}`);
  const width = 1 / costs.length;
  const axes = costs.map((cost, index) => [
    index ? `xaxis${index + 1}` : "xaxis",
    axis(`${cost.label}, ${cost.unit}`, {
      rangemode: "tozero",
      domain: [index * width, (index + 1) * width - (index + 1 < costs.length ? 0.08 : 0)],
    }),
  ]);
  return {
    title: named.join(", "),
    note: `Per ternary layer: ${costs.map((cost) => `${cost.label} (${cost.remark})`).join(", ")}.`,
    alt: `Bar chart per layer: ${named.join(", ")}.`,
    traces,
    layout: layout(barsHeight(layers.length), {
      uirevision: "cost",
      margin: { l: 60, r: 20, t: 8, b: 40 },
      bargap: 0.3,
      yaxis: namesAxis(layers),
      ...Object.fromEntries(axes),
    }),
  };
}
