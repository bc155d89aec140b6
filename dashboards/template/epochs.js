// The selected trial by epoch: accuracy, schedules, and weights on their way to -1, 0 and +1.
function frozenShape(byEpoch) {
  const first = byEpoch.phase.indexOf("frozen");
  if (first < 0) return [];
  return [{
    type: "rect",
    xref: "x",
    x0: byEpoch.epoch[first] - 1,
    x1: byEpoch.epoch.at(-1),
    yref: "paper",
    y0: 0,
    y1: 1,
    layer: "below",
    line: { width: 0 },
    fillcolor: faded(colours().faint, 0.14),
  }];
}

function accuracyFigure() {
  const byEpoch = detailOf(state.trial)?.epoch_columns;
  if (!byEpoch?.epoch.length) return null;
  const colour = colours();
  const last = byEpoch.phase.lastIndexOf("ternary");
  const gap = last < 0 ? 0 : metricFactor() * (byEpoch.soft_metric[last] - byEpoch.rounded_metric[last]);
  const isNothing = Math.abs(gap) < (metric().is_fraction ? 0.005 : 1e-4 * Math.abs(byEpoch.soft_metric[last] ?? 1));
  const costs = metric().is_fraction ? `${Math.abs(gap).toFixed(2)} points` : `${short(Math.abs(gap))} ${metric().name}`;
  const title = isNothing
    ? "Rounding costs nothing at the end of training"
    : `Rounding ${gap > 0 ? "costs" : "gains"} ${costs} at the end of training`;
  const scaled = (values) => values.map((value) => metricFactor() * value);
  const dense = study().dense_metric;
  const traces = [
    curve("soft", byEpoch.epoch, scaled(byEpoch.soft_metric), line(colour.second, "dash"), {
      hovertemplate: `soft %{y:.4~g} ${metricUnit()}<extra></extra>`,
    }),
    curve("rounded", byEpoch.epoch, scaled(byEpoch.rounded_metric), line(colour.accent), {
      hovertemplate: `rounded %{y:.4~g} ${metricUnit()}<extra></extra>`,
    }),
  ];
  if (isNumber(dense)) {
    traces.push(
      curve(
        "dense",
        [byEpoch.epoch[0], byEpoch.epoch.at(-1)],
        [metricFactor() * dense, metricFactor() * dense],
        line(colour.quiet, "dot", 1.25),
        { hoverinfo: "skip", mode: "lines" },
      ),
    );
  }
  const frozen = byEpoch.phase.includes("frozen")
    ? " In the shaded epochs trits are frozen and the float parts train on."
    : "";
  return {
    title,
    note: `Validation ${metric().name} of the network as trained (soft) and as rounding would leave it.${frozen}`,
    alt: `Line chart of ${metric().name} over ${byEpoch.epoch.length} epochs, ending at ${
      shownMetric(byEpoch.rounded_metric.at(-1))
    }.`,
    traces,
    layout: layout(310, {
      uirevision: "accuracy",
      hovermode: "x unified",
      shapes: frozenShape(byEpoch),
      xaxis: axis("epoch", { rangemode: "tozero" }),
      yaxis: axis(metricAxis()),
    }),
  };
}

// α, and λ and the soft fraction where they are at work, over the epochs before the trits are frozen.
function scheduleRows(byEpoch) {
  const colour = colours();
  const isTernary = (_, index) => byEpoch.phase[index] === "ternary";
  const rows = [
    { symbol: "α", key: "alpha", ink: colour.accent, about: "α sets the sparsity" },
    { symbol: "λ", key: "strength", ink: colour.second, about: "λ is the regularization strength" },
    { symbol: "soft fraction", key: "soft_fraction", ink: colour.third, about: "soft weights are not at a trit yet" },
  ].map((row) => ({ ...row, values: byEpoch[row.key].filter(isTernary), epochs: byEpoch.epoch.filter(isTernary) }));
  const isAtWork = {
    alpha: () => true,
    strength: (values) => values.some((value) => value > 0),
    soft_fraction: (values) => values.every(isNumber),
  };
  return rows.filter(({ key, values }) => isAtWork[key](values));
}

function scheduleAxis(row, index, count) {
  const [least, most] = [Math.min(...row.values), Math.max(...row.values)];
  const isLog = row.key === "strength" && least > 0 && most / least > 20;
  const ticks = isLog
    ? { dtick: most / least > 200 ? 1 : "D2", tickformat: "~g" }
    : { rangemode: row.key === "alpha" ? "normal" : "tozero", tickformat: row.key === "soft_fraction" ? "~%" : "" };
  const gap = index < count - 1 ? 0.06 : 0;
  return axis(row.symbol, {
    domain: [1 - (index + 1) / count + gap, 1 - index / count],
    type: isLog ? "log" : "linear",
    nticks: 4,
    ...ticks,
  });
}

function scheduleTrace(row, index) {
  return curve(row.symbol, row.epochs, row.values, line(row.ink, "solid", 2.2), {
    yaxis: index ? `y${index + 1}` : "y",
    showlegend: false,
    hovertemplate: `${row.symbol} %{y:.3g} after epoch %{x}<extra></extra>`,
  });
}

function layerAlphas(distribution) {
  const style = line(faded(colours().accent, 0.45), "solid", 1);
  return Object.entries(distribution?.alphas ?? {}).map(([layer, alphas]) =>
    curve(plain(layer), distribution.epoch, alphas, style, {
      hovertemplate: `${plain(layer)}: α %{y:.3f}<extra></extra>`,
      showlegend: false,
    })
  );
}

function schedulesFigure() {
  const detail = detailOf(state.trial);
  if (!detail?.epoch_columns.epoch.length) return null;
  const rows = scheduleRows(detail.epoch_columns);
  const thin = detail.distribution ? "; thin: α of each" : "";
  const ends = rows.map((row) => `${row.symbol} from ${short(row.values[0])} to ${short(row.values.at(-1))}`);
  const axes = rows.map((row, index) => [`yaxis${index ? index + 1 : ""}`, scheduleAxis(row, index, rows.length)]);
  return {
    title: `How ${rows.map((row) => row.symbol).join(", ")} ${rows.length === 1 ? "moves" : "move"}`,
    note: `${rows.map((row) => row.about).join("; ")}. Thick: mean over the layers${thin}.`,
    alt: `Line charts over epochs: ${ends.join(", ")}.`,
    traces: [...layerAlphas(detail.distribution), ...rows.map(scheduleTrace)],
    layout: layout(Math.max(310, 120 + 95 * rows.length), {
      uirevision: "schedules",
      xaxis: axis("epoch", { anchor: rows.length > 1 ? `y${rows.length}` : "y", rangemode: "tozero" }),
      ...Object.fromEntries(axes),
    }),
  };
}

// Where weights lie, epoch by epoch, from -1 (below) to 1.
function weightsTrace(epochs, fractions, index) {
  const bins = fractions[0].length;
  const values = Array.from({ length: bins }, (_, bin) => -1 + (2 * bin + 1) / bins);
  // The square root makes the low density between the peaks visible.
  const z = values.map((_, bin) => fractions.map((epoch) => Math.sqrt(epoch[bin] / 1e4)));
  return {
    type: "heatmap",
    x: epochs,
    y: values,
    xaxis: index ? "x2" : "x",
    yaxis: index ? "y2" : "y",
    z,
    customdata: values.map((_, bin) => fractions.map((epoch) => epoch[bin] / 100)),
    zmin: 0,
    zmax: Math.max(...z.flat()),
    colorscale: sequential(colours()),
    showscale: false,
    hovertemplate: "after epoch %{x}<br>around %{y:.2f}: %{customdata:.2f} % of the weights<extra></extra>",
  };
}

function weightsLayout(both) {
  const isStacked = both && isNarrow();
  const first = { x: both && !isStacked ? [0, 0.46] : [0, 1], y: isStacked ? [0.57, 1] : [0, 1] };
  const second = isStacked ? { x: [0, 1], y: [0, 0.43] } : { x: [0.54, 1], y: [0, 1] };
  const levels = { tickvals: [-1, -0.5, 0, 0.5, 1], showgrid: false, showline: false };
  const epochs = { showgrid: false, nticks: 6 };
  const secondPanel = {
    xaxis2: axis("epoch", { domain: second.x, anchor: "y2", ...epochs }),
    yaxis2: axis("W", { domain: second.y, anchor: "x2", ...levels }),
  };
  return layout(isStacked ? 460 : 320, {
    uirevision: "distribution",
    margin: { l: 52, r: 12, t: 8, b: 44 },
    xaxis: axis("epoch", { domain: first.x, anchor: "y", ...epochs }),
    yaxis: axis(both ? "tanh Θ" : "tanh Θ = W", { domain: first.y, ...levels }),
    ...(both ? secondPanel : {}),
  });
}

function distributionFigure() {
  if (!detailOf(state.trial)) return null;
  const data = detailOf(state.trial).distribution;
  if (!data) {
    return {
      title: "Weights over epochs",
      note: "How tanh Θ is distributed while it trains.",
      empty: "This trial has no histograms.",
    };
  }
  const panels = data.soft ? [data.tanh, data.soft] : [data.tanh];
  const final = panels.at(-1).at(-1);
  const peaks = [0, (final.length - 1) / 2, final.length - 1].map((bin) => final[bin] / 100);
  const percentage = peaks.reduce((sum, peak) => sum + peak, 0);
  const [one, other] = isNarrow() ? ["above", "below"] : ["left", "right"];
  const which = data.soft
    ? `tanh Θ (${one}) is what is trained, W (${other}) what the network computes with.`
    : "tanh Θ is what the network computes with.";
  return {
    title: percentage > 90
      ? `Weights concentrate at −1, 0 and +1: ${percentage.toFixed(0)} % at the end`
      : `${percentage.toFixed(0)} % of the weights are at a peak at the end`,
    note: `How weights are spread after each epoch; the stronger the colour, the more of them. ${which}`,
    alt: `Heat map of weights over epochs; at the end ${
      peaks.map((peak) => `${peak.toFixed(1)} %`).join(", ")
    } lie at −1, 0 and +1.`,
    traces: panels.map((fractions, index) => weightsTrace(data.epoch, fractions, index)),
    layout: weightsLayout(panels.length > 1),
  };
}
