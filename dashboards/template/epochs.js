// The selected trial by epoch: accuracy, schedules, and weights on their way to -1, 0 and +1.
function frozenShape(course) {
  const first = course.phase.indexOf("frozen");
  if (first < 0) return [];
  return [{
    type: "rect",
    xref: "x",
    x0: course.epoch[first] - 1,
    x1: course.epoch.at(-1),
    yref: "paper",
    y0: 0,
    y1: 1,
    layer: "below",
    line: { width: 0 },
    fillcolor: faded(colours().faint, 0.14),
  }];
}

function accuracyFigure() {
  const course = detailOf(state.trial)?.course;
  if (!course?.epoch.length) return null;
  const colour = colours();
  const last = course.phase.lastIndexOf("ternary");
  const gap = last < 0 ? 0 : 100 * (course.soft_accuracy[last] - course.rounded_accuracy[last]);
  const title = Math.abs(gap) < 0.005
    ? "Rounding costs nothing at the end of training"
    : `Rounding ${gap > 0 ? "costs" : "gains"} ${Math.abs(gap).toFixed(2)} points at the end of training`;
  const shares = (values) => values.map((value) => 100 * value);
  const dense = study().dense_accuracy;
  const traces = [
    curve("soft", course.epoch, shares(course.soft_accuracy), line(colour.second, "dash"), {
      hovertemplate: "soft %{y:.2f} %<extra></extra>",
    }),
    curve("rounded", course.epoch, shares(course.rounded_accuracy), line(colour.accent), {
      hovertemplate: "rounded %{y:.2f} %<extra></extra>",
    }),
  ];
  if (isNumber(dense)) {
    traces.push(
      curve(
        "dense",
        [course.epoch[0], course.epoch.at(-1)],
        [100 * dense, 100 * dense],
        line(colour.quiet, "dot", 1.25),
        { hoverinfo: "skip", mode: "lines" },
      ),
    );
  }
  const frozen = course.phase.includes("frozen")
    ? " In the shaded epochs trits are frozen and the float parts train on."
    : "";
  return {
    title,
    note: `Validation accuracy of the network as trained (soft) and as rounding would leave it.${frozen}`,
    alt: `Line chart of accuracy over ${course.epoch.length} epochs, ending at ${
      percent(course.rounded_accuracy.at(-1))
    }.`,
    traces,
    layout: layout(310, {
      uirevision: "accuracy",
      hovermode: "x unified",
      shapes: frozenShape(course),
      xaxis: axis("epoch", { rangemode: "tozero" }),
      yaxis: axis("validation accuracy, %"),
    }),
  };
}

function schedulesFigure() {
  const detail = detailOf(state.trial);
  const course = detail?.course;
  if (!course?.epoch.length) return null;
  const colour = colours();
  const ternary = course.phase.map((phase, index) => (phase === "ternary" ? index : -1)).filter((index) => index >= 0);
  const taken = (values) => ternary.map((index) => values[index]);
  const epochs = taken(course.epoch);
  const rows = [["α", "alpha", colour.accent, "linear"], ["λ", "strength", colour.second, "log"], [
    "β",
    "sharpness",
    colour.third,
    "log",
  ]]
    .map(([symbol, key, ink, kind]) => ({ symbol, ink, kind, key, values: taken(course[key]) }))
    .filter(({ key, values }) =>
      key === "alpha" || (key === "strength" ? values.some((value) => value > 0) : new Set(values).size > 1)
    );
  const traces = [];
  const more = {};
  rows.forEach((row, index) => {
    const ending = index ? String(index + 1) : "";
    const [least, most] = [Math.min(...row.values), Math.max(...row.values)];
    const isLog = row.kind === "log" && least > 0 && most / least > 20;
    const height = 1 / rows.length;
    more[`yaxis${ending}`] = axis(row.symbol, {
      domain: [1 - (index + 1) * height + (index < rows.length - 1 ? 0.06 : 0), 1 - index * height],
      type: isLog ? "log" : "linear",
      nticks: 4,
      ...(isLog
        ? { dtick: most / least > 200 ? 1 : "D2", tickformat: "~g" }
        : { rangemode: row.kind === "log" ? "tozero" : "normal" }),
    });
    if (row.key === "alpha" && detail.distribution) {
      for (const [layer, alphas] of Object.entries(detail.distribution.alphas)) {
        traces.push(
          curve(plain(layer), detail.distribution.epoch, alphas, line(faded(colour.accent, 0.45), "solid", 1), {
            hovertemplate: `${plain(layer)}: α %{y:.3f}<extra></extra>`,
            showlegend: false,
          }),
        );
      }
    }
    traces.push(
      curve(row.symbol, epochs, row.values, line(row.ink, "solid", 2.2), {
        yaxis: `y${ending}`,
        showlegend: false,
        hovertemplate: `${row.symbol} %{y:.3g} after epoch %{x}<extra></extra>`,
      }),
    );
  });
  const names = {
    alpha: "α sets the share of zeros",
    strength: "λ is the pull",
    sharpness: "β sharpens the forward pass",
  };
  return {
    title: `How ${rows.map((row) => row.symbol).join(", ")} ${rows.length === 1 ? "moves" : "move"}`,
    note: `${rows.map((row) => names[row.key]).join("; ")}. Thick: mean over the layers${
      detail.distribution ? "; thin: α of each" : ""
    }.`,
    alt: `Line charts over epochs: ${
      rows.map((row) => `${row.symbol} from ${short(row.values[0])} to ${short(row.values.at(-1))}`).join(", ")
    }.`,
    traces,
    layout: layout(Math.max(310, 120 + 95 * rows.length), {
      uirevision: "schedules",
      xaxis: axis("epoch", { anchor: rows.length > 1 ? `y${rows.length}` : "y", rangemode: "tozero" }),
      ...more,
    }),
  };
}

function distributionFigure() {
  const told = detailOf(state.trial)?.distribution;
  const title = "Weights gather at −1, 0 and +1";
  if (!detailOf(state.trial)) return null;
  if (!told) {
    return {
      title: "Weights over epochs",
      note: "How tanh Θ is distributed while it trains.",
      empty: "This run was trained before distributions were kept.",
    };
  }
  const bins = told.tanh[0].length;
  const values = Array.from({ length: bins }, (_, index) => -1 + (2 * index + 1) / bins);
  const panels = [
    ["tanh Θ, what is trained", told.tanh],
    ...(told.soft ? [["W, what the network computes with", told.soft]] : []),
  ];
  const colour = colours();
  const both = panels.length > 1;
  const stacked = both && isNarrow();
  const traces = panels.map(([name, shares], index) => {
    // The root lets the thin spread between the peaks be seen beside them.
    const z = values.map((_, bin) => shares.map((epoch) => Math.sqrt(epoch[bin] / 1e4)));
    return {
      type: "heatmap",
      name,
      x: told.epoch,
      y: values,
      xaxis: index ? "x2" : "x",
      yaxis: index ? "y2" : "y",
      z,
      customdata: values.map((_, bin) => shares.map((epoch) => epoch[bin] / 100)),
      zmin: 0,
      zmax: Math.max(...z.flat()),
      colorscale: sequential(colour),
      showscale: false,
      hovertemplate: "after epoch %{x}<br>around %{y:.2f}: %{customdata:.2f} % of the weights<extra></extra>",
    };
  });
  const final = panels.at(-1)[1].at(-1);
  const at = [0, (bins - 1) / 2, bins - 1];
  const peaks = at.map((bin) => `${(final[bin] / 100).toFixed(1)} %`);
  const share = at.reduce((sum, bin) => sum + final[bin], 0) / 100;
  const places = stacked ? ["above", "below"] : ["left", "right"];
  const [firstPlace, secondPlace] = stacked
    ? [{ y: [0.57, 1], x: [0, 1] }, { y: [0, 0.43], x: [0, 1] }]
    : [{ x: both ? [0, 0.46] : [0, 1], y: [0, 1] }, { x: [0.54, 1], y: [0, 1] }];
  const levels = { tickvals: [-1, -0.5, 0, 0.5, 1], showgrid: false, showline: false };
  return {
    title: share > 90
      ? `${title}: ${share.toFixed(0)} % in the end`
      : `${share.toFixed(0)} % of the weights have reached a peak in the end`,
    note: both
      ? `How weights are spread after each epoch; the stronger the colour, the more of them. tanh Θ (${
        places[0]
      }) is what is trained, W (${places[1]}) what the network computes with.`
      : "How weights are spread after each epoch; the stronger the colour, the more of them. tanh Θ is what the network computes with.",
    alt: `Heat map of weights over epochs; at the end ${peaks.join(", ")} lie at −1, 0 and +1.`,
    traces,
    layout: layout(stacked ? 460 : 320, {
      uirevision: "distribution",
      margin: { l: 52, r: 12, t: 8, b: 44 },
      xaxis: axis("epoch", { domain: firstPlace.x, anchor: "y", showgrid: false, nticks: 6 }),
      yaxis: axis(both ? "tanh Θ" : "tanh Θ = W", { domain: firstPlace.y, ...levels }),
      ...(both
        ? {
          xaxis2: axis("epoch", { domain: secondPlace.x, anchor: "y2", showgrid: false, nticks: 6 }),
          yaxis2: axis("W", { domain: secondPlace.y, anchor: "x2", ...levels }),
        }
        : {}),
    }),
  };
}
