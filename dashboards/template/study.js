// The study as a whole: how fast it got better, who did what, what each layer bears.
const hasGrown = (growth) => growth.area.length > 1 && growth.area.at(-1) > 0;
const hasEpochs = (growth) => growth.epochs.length === growth.area.length && growth.epochs.at(-1) > 0;

function showGrowthAxes() {
  const { growth } = study();
  const offered = [["trials", "trials"], ["epochs", "epochs"]].slice(0, hasGrown(growth) && hasEpochs(growth) ? 2 : 1);
  showSwitch(byId("growth-axis"), "growth-axis", offered, state.growthAxis, (value) => {
    state.growthAxis = value;
    update("growth");
  });
}

function growthFigure() {
  const { growth } = study();
  if (!hasGrown(growth)) {
    return {
      title: "How the front's area grows",
      note: "Hypervolume after each trial.",
      empty: "It takes two trials, and one that is complete.",
    };
  }
  const colour = colours();
  const byEpochs = hasEpochs(growth) && state.growthAxis === "epochs";
  const x = byEpochs ? growth.epochs : growth.area.map((_, index) => index + 1);
  const { metric: level, sparsity } = growth.reference;
  return {
    title: growth.headline,
    note: `Hypervolume: the area that the front covers above ${shownMetric(level)} ${metric().name} and ${
      percent(sparsity, 0)
    } zeros.`,
    alt: `Step chart of the front's area, ending at ${short(growth.area.at(-1))} after ${
      counted(growth.area.length, "trial")
    }.`,
    traces: [
      curve("area", x, growth.area, { ...line(colour.accent), shape: "hv" }, {
        fill: "tozeroy",
        fillcolor: faded(colour.accent, 0.08),
        showlegend: false,
        customdata: growth.trial,
        hovertemplate: "area %{y:.5f} after trial %{customdata}<extra></extra>",
      }),
    ],
    layout: layout(300, {
      uirevision: `growth ${byEpochs}`,
      // Fixed: with both margins automatic, plotly goes back and forth between two sets of labels for some areas.
      xaxis: axis(byEpochs ? "epochs trained" : "trials finished", { rangemode: "tozero", automargin: false }),
      yaxis: axis("area", { rangemode: "tozero" }),
    }),
  };
}

function timelineFigure() {
  const bars = study().timeline;
  const title = "Who trained what, and when";
  const note = "One bar per trial, one row per worker.";
  if (!bars.length) {
    return trials().length
      ? { title, note, empty: "This run has no starting times." }
      : { title, note, empty: "No trial has finished yet." };
  }
  const colour = colours();
  const workers = [...new Set(bars.map((bar) => bar.worker))].sort((a, b) => a - b);
  const looks = {
    complete: [colour.accent, "complete", ""],
    paused: [colour.faint, "paused", "/"],
    failed: [colour.second, "failed", "x"],
  };
  const busy = bars.reduce((sum, bar) => sum + bar.seconds, 0);
  const whole = Math.max(...bars.map((bar) => bar.start + bar.seconds));
  const unit = whole > 7200 ? [3600, "hours"] : whole > 180 ? [60, "minutes"] : [1, "seconds"];
  return {
    title: workers.length > 1
      ? `${workers.length} workers, busy ${percent(busy / (whole * workers.length), 0)} of the time`
      : `One worker, ${clock(busy / bars.length)} per trial`,
    note,
    alt: `Time line of ${counted(bars.length, "trial")} on ${counted(workers.length, "worker")} over ${clock(whole)}.`,
    traces: Object.entries(looks).map(([key, [ink, name, shape]]) => {
      const mine = bars.filter((bar) => bar.state === key);
      return {
        type: "bar",
        orientation: "h",
        name,
        base: mine.map((bar) => bar.start / unit[0]),
        x: mine.map((bar) => bar.seconds / unit[0]),
        y: mine.map((bar) => workers.indexOf(bar.worker)),
        customdata: mine.map((bar) => bar.trial),
        text: mine.map((bar) => `trial ${bar.trial}: ${clock(bar.seconds)}`),
        textposition: "none",
        hovertemplate: "%{text}<extra></extra>",
        marker: {
          color: ink,
          line: { color: colour.card, width: bars.length > 100 ? 0 : 1 },
          pattern: { shape, fgcolor: colour.card, size: 5, fillmode: "overlay" },
        },
        width: 0.6,
      };
    }).filter((trace) => trace.x.length),
    layout: layout(Math.max(210, 120 + 40 * workers.length), {
      uirevision: "timeline",
      barmode: "overlay",
      xaxis: axis(`${unit[1]} since the start of the first trial`, { rangemode: "tozero" }),
      yaxis: axis("", {
        tickmode: "array",
        tickvals: workers.map((_, index) => index),
        ticktext: workers.map((worker) => `worker ${worker}\u2002`),
        range: [workers.length - 0.4, -0.6],
        showgrid: false,
        showline: false,
        ticks: "",
        fixedrange: true,
      }),
    }),
  };
}

function sensitivityFigure() {
  const data = study().sensitivity;
  const note =
    "Layer sensitivity: validation loss increase when only this layer is ternarized, without retraining. Allocations are searched around it.";
  if (!data) {
    return {
      title: "Layer sensitivity",
      note,
      empty: "Not measured; only studies that search how zeros are shared among layers do.",
    };
  }
  const colour = colours();
  const shown = data.loss.map((row) => row.map((loss) => (loss === null ? null : Math.log10(Math.max(loss, 1e-3)))));
  const many = data.layers.length > 8;
  return {
    title: data.headline,
    note,
    alt: `Heat map of added loss by layer and sparsity. ${data.headline}.`,
    traces: [{
      type: "heatmap",
      x: data.sparsity.map((sparsity) => percent(sparsity, 0)),
      y: data.layers.map((_, index) => index),
      z: shown,
      customdata: data.loss,
      text: data.loss.map((row) => row.map((loss) => (loss === null ? "" : loss.toFixed(2)))),
      texttemplate: many || isNarrow() ? "" : "%{text}",
      textfont: { size: 11 },
      colorscale: sequential(colour),
      showscale: false,
      xgap: 2,
      ygap: 2,
      hovertemplate: "%{customdata:+.4f} at %{x} zeros<extra></extra>",
      hoverongaps: false,
    }],
    layout: layout(Math.max(210, barsHeight(data.layers.length)), {
      uirevision: "sensitivity",
      xaxis: axis("zeros in that layer", { type: "category", showgrid: false, showline: false, ticks: "" }),
      yaxis: axis("", {
        tickmode: "array",
        tickvals: data.layers.map((_, index) => index),
        ticktext: data.layers.map((layer) => `${plain(layer)}\u2002`),
        autorange: "reversed",
        showgrid: false,
        showline: false,
        ticks: "",
      }),
    }),
  };
}
