// The study as a whole: how fast it got better, what mattered, who did what.
function growthFigure() {
  const { growth } = study();
  if (growth.area.length < 2 || !growth.area.at(-1)) return { title: "How the front's area grows", note: "Hypervolume after each trial.", empty: "It takes two trials, and one that is complete." };
  const colour = colours();
  const hasEpochs = growth.epochs.length === growth.area.length && growth.epochs.at(-1) > 0;
  showSwitch(byId("growth-axis"), "growth-axis", hasEpochs ? [["trials", "trials"], ["epochs", "epochs"]] : [["trials", "trials"]], state.growthAxis, (value) => {
    state.growthAxis = value;
    update("growth");
  });
  const byEpochs = hasEpochs && state.growthAxis === "epochs";
  const x = byEpochs ? growth.epochs : growth.area.map((_, index) => index + 1);
  const { accuracy, sparsity } = growth.reference;
  return {
    title: growth.headline,
    note: `Hypervolume: the area that the front covers above ${percent(accuracy)} accuracy and ${percent(sparsity, 0)} zeros.`,
    alt: `Step chart of the front's area, ending at ${short(growth.area.at(-1))} after ${counted(growth.area.length, "trial")}.`,
    traces: [curve("area", x, growth.area, { ...line(colour.accent), shape: "hv" }, { fill: "tozeroy", fillcolor: faded(colour.accent, 0.08), showlegend: false, customdata: growth.trial, hovertemplate: "area %{y:.5f} after trial %{customdata}<extra></extra>" })],
    layout: layout(300, { uirevision: `growth ${byEpochs}`, xaxis: axis(byEpochs ? "epochs trained" : "trials finished", { rangemode: "tozero" }), yaxis: axis("area", { rangemode: "tozero" }) }),
  };
}

function importanceFigure() {
  const { ranked, headline } = study().importance;
  const note = "Share of each searched value in a trial being among the best for its sparsity (PED-ANOVA). Few trials make it rough.";
  if (!ranked.length) return { title: headline, note, empty: "It takes ten complete trials in which a value was varied." };
  const shown = ranked.slice(0, 12);
  const colour = colours();
  return {
    title: headline, note, alt: `Bar chart of importance: ${shown.map(([name, share]) => `${name} ${percent(share, 0)}`).join(", ")}.`,
    traces: [{
      type: "bar", orientation: "h", y: shown.map((_, index) => index), x: shown.map(([, share]) => 100 * share), width: 0.66, marker: { color: colour.accent },
      text: shown.map(([, share]) => percent(share, 0)), textposition: "outside", cliponaxis: false, textfont: { size: 11, color: colour.ink }, hoverinfo: "skip", showlegend: false,
    }],
    layout: layout(Math.max(300, barsHeight(shown.length)), {
      uirevision: "importance", margin: { l: 60, r: 40, t: 8, b: 40 }, xaxis: axis("share, %", { rangemode: "tozero" }),
      yaxis: axis("", { tickmode: "array", tickvals: shown.map((_, index) => index), ticktext: shown.map(([name]) => `${plain(name)}\u2002`), autorange: "reversed", showgrid: false, showline: false, ticks: "" }),
    }),
  };
}

// Where a value lies on its axis, from 0 to 1.
function placeOn(scale, value) {
  if (scale.kind === "names") return scale.names.length < 2 ? 0.5 : scale.names.indexOf(String(value)) / (scale.names.length - 1);
  const [low, high, at] = scale.kind === "log" ? [Math.log(scale.low), Math.log(scale.high), Math.log(value)] : [scale.low, scale.high, value];
  return high > low ? (at - low) / (high - low) : 0.5;
}

// A phone has room for the four values that mattered most, and the outcome.
function parallelShown() {
  const told = study().parallel;
  if (!isNarrow() || told.axes.length < 7) return told;
  const kept = [0, 1, 2, 3, told.axes.length - 2, told.axes.length - 1];
  const pick = (values) => kept.map((index) => values[index]);
  return { axes: pick(told.axes), lines: told.lines.map(pick), trials: told.trials };
}

function parallelFigure() {
  const { axes, lines, trials: numbers } = parallelShown();
  const note = "A line a trial across the values that mattered most; strong: trials on the front; dashed: the selected one. Click a line to select it.";
  if (lines.length < 2) return { title: "Values and outcomes", note, empty: "It takes two complete trials." };
  const colour = colours();
  const onFront = new Set(currentFront().trials);
  const joined = (keep) => {
    const made = { x: [], y: [], customdata: [] };
    lines.forEach((values, index) => {
      if (!keep(numbers[index])) return;
      values.forEach((value, at) => { made.x.push(at); made.y.push(placeOn(axes[at], value)); made.customdata.push(numbers[index]); });
      made.x.push(null); made.y.push(null); made.customdata.push(null);
    });
    return made;
  };
  const trace = (name, keep, look) => ({ type: "scatter", mode: "lines", name, ...joined(keep), line: look, hovertemplate: "trial %{customdata}<extra></extra>", connectgaps: false });
  const ends = (scale) => (scale.kind === "names" ? [scale.names.at(-1), scale.names[0]] : [scale.high, scale.low]).map((value) => ["sparsity", "accuracy"].includes(scale.name) ? percent(value, 1) : plain(short(value)));
  const narrow = isNarrow();
  const names = axes.map((scale) => plain(scale.name).replaceAll("_", " "));
  return {
    title: "Which values good trials have in common", note,
    alt: `Parallel coordinates of ${counted(lines.length, "trial")} over ${axes.map((scale) => scale.name).join(", ")}.`,
    traces: [
      trace("trials", (number) => !onFront.has(number), line(faded(colour.faint, 0.4), "solid", 1)),
      trace("front", (number) => onFront.has(number), line(faded(colour.accent, 0.85), "solid", 1.8)),
      trace("selected", (number) => number === state.trial, line(colour.second, "dash", 2.6)),
    ],
    layout: layout(narrow ? 420 : 340, {
      uirevision: "parallel", margin: { l: 34, r: 34, t: 24, b: narrow ? 120 : 32 },
      xaxis: axis("", { range: [-0.25, axes.length - 0.75], tickmode: "array", tickvals: axes.map((_, index) => index), ticktext: names, tickangle: narrow ? -90 : 0, showgrid: true, gridcolor: colour.line, ticks: "", showline: false, fixedrange: true, automargin: true }),
      yaxis: { visible: false, range: [-0.12, 1.1], fixedrange: true },
      annotations: axes.flatMap((scale, index) => ends(scale).map((text, side) => label(text, { x: index, y: side ? 0 : 1, yanchor: side ? "top" : "bottom", font: { size: narrow ? 9 : 11, color: colour.quiet } }))),
      legend: { orientation: "h", x: 0, y: 1.04, yanchor: "bottom", font: { size: 12, color: colour.quiet }, bgcolor: "rgba(0,0,0,0)" },
    }),
  };
}

function timelineFigure() {
  const bars = study().timeline;
  const title = "Who trained what, and when";
  const note = "A bar a trial, a row a worker.";
  if (!bars.length) return trials().length ? { title, note, empty: "This run was made before starting times were kept." } : { title, note, empty: "No trial has finished yet." };
  const colour = colours();
  const workers = [...new Set(bars.map((bar) => bar.worker))].sort((a, b) => a - b);
  const looks = { complete: [colour.accent, "complete", ""], paused: [colour.faint, "paused", "/"], failed: [colour.second, "failed", "x"] };
  const busy = bars.reduce((sum, bar) => sum + bar.seconds, 0);
  const whole = Math.max(...bars.map((bar) => bar.start + bar.seconds));
  const unit = whole > 7200 ? [3600, "hours"] : whole > 180 ? [60, "minutes"] : [1, "seconds"];
  return {
    title: workers.length > 1 ? `${workers.length} workers, busy ${percent(busy / (whole * workers.length), 0)} of the time` : `One worker, ${clock(busy / bars.length)} a trial`,
    note, alt: `Time line of ${counted(bars.length, "trial")} on ${counted(workers.length, "worker")} over ${clock(whole)}.`,
    traces: Object.entries(looks).map(([kept, [ink, name, shape]]) => {
      const mine = bars.filter((bar) => bar.state === kept);
      return {
        type: "bar", orientation: "h", name, base: mine.map((bar) => bar.start / unit[0]), x: mine.map((bar) => bar.seconds / unit[0]), y: mine.map((bar) => workers.indexOf(bar.worker)),
        customdata: mine.map((bar) => bar.trial), text: mine.map((bar) => `trial ${bar.trial}: ${clock(bar.seconds)}`), textposition: "none", hovertemplate: "%{text}<extra></extra>",
        marker: { color: ink, line: { color: colour.card, width: bars.length > 100 ? 0 : 1 }, pattern: { shape, fgcolor: colour.card, size: 5, fillmode: "overlay" } }, width: 0.6,
      };
    }).filter((trace) => trace.x.length),
    layout: layout(Math.max(210, 120 + 40 * workers.length), {
      uirevision: "timeline", barmode: "overlay", xaxis: axis(`${unit[1]} since the first trial began`, { rangemode: "tozero" }),
      yaxis: axis("", { tickmode: "array", tickvals: workers.map((_, index) => index), ticktext: workers.map((worker) => `worker ${worker}\u2002`), range: [workers.length - 0.4, -0.6], showgrid: false, showline: false, ticks: "", fixedrange: true }),
    }),
  };
}

function sensitivityFigure() {
  const told = study().sensitivity;
  const note = "Validation loss that rounding one layer alone adds, before any training; splits of the zeros are searched around what this suggests.";
  if (!told) return { title: "Layer sensitivity", note, empty: "Not measured; only studies that search how zeros are shared among layers do." };
  const colour = colours();
  const shown = told.loss.map((row) => row.map((loss) => (loss === null ? null : Math.log10(Math.max(loss, 1e-3)))));
  const many = told.layers.length > 8;
  return {
    title: told.headline, note, alt: `Heat map of added loss by layer and sparsity. ${told.headline}.`,
    traces: [{
      type: "heatmap", x: told.sparsity.map((sparsity) => percent(sparsity, 0)), y: told.layers.map((_, index) => index), z: shown, customdata: told.loss,
      text: told.loss.map((row) => row.map((loss) => (loss === null ? "" : loss.toFixed(2)))), texttemplate: many || isNarrow() ? "" : "%{text}", textfont: { size: 11 },
      colorscale: sequential(colour), showscale: false, xgap: 2, ygap: 2, hovertemplate: "%{customdata:+.4f} at %{x} zeros<extra></extra>", hoverongaps: false,
    }],
    layout: layout(Math.max(210, barsHeight(told.layers.length)), {
      uirevision: "sensitivity", xaxis: axis("zeros in that layer", { type: "category", showgrid: false, showline: false, ticks: "" }),
      yaxis: axis("", { tickmode: "array", tickvals: told.layers.map((_, index) => index), ticktext: told.layers.map((layer) => `${plain(layer)}\u2002`), autorange: "reversed", showgrid: false, showline: false, ticks: "" }),
    }),
  };
}
