// The searched parameters: their importance, and what good trials have in common.
function importanceFigure() {
  const { ranked, headline } = study().importance;
  const note =
    "Importance of each searched parameter for being among the best trials of a sparsity (PED-ANOVA). Rough with few trials.";
  if (!ranked.length) {
    return { title: headline, note, empty: "Needs ten complete trials in which a parameter varies." };
  }
  const shown = ranked.slice(0, 12);
  const colour = colours();
  return {
    title: headline,
    note,
    alt: `Bar chart of importance: ${shown.map(([name, value]) => `${name} ${percent(value, 0)}`).join(", ")}.`,
    traces: [{
      type: "bar",
      orientation: "h",
      y: shown.map((_, index) => index),
      x: shown.map(([, value]) => 100 * value),
      width: 0.66,
      marker: { color: colour.accent },
      text: shown.map(([, value]) => percent(value, 0)),
      textposition: "outside",
      cliponaxis: false,
      textfont: { size: 11, color: colour.ink },
      hoverinfo: "skip",
      showlegend: false,
    }],
    layout: layout(Math.max(300, barsHeight(shown.length)), {
      uirevision: "importance",
      margin: { l: 60, r: 40, t: 8, b: 40 },
      xaxis: axis("importance, %", { rangemode: "tozero" }),
      yaxis: axis("", {
        tickmode: "array",
        tickvals: shown.map((_, index) => index),
        ticktext: shown.map(([name]) => `${plain(name)}\u2002`),
        autorange: "reversed",
        showgrid: false,
        showline: false,
        ticks: "",
      }),
    }),
  };
}

// Where a value lies on its axis, from 0 to 1.
function placeOn(scale, value) {
  if (scale.kind === "names") {
    return scale.names.length < 2 ? 0.5 : scale.names.indexOf(String(value)) / (scale.names.length - 1);
  }
  const [low, high, at] = scale.kind === "log"
    ? [Math.log(scale.low), Math.log(scale.high), Math.log(value)]
    : [scale.low, scale.high, value];
  return high > low ? (at - low) / (high - low) : 0.5;
}

// A narrow screen shows the four most important parameters and the result.
function parallelShown() {
  const data = study().parallel;
  if (!isNarrow() || data.axes.length < 7) return data;
  const indices = [0, 1, 2, 3, data.axes.length - 2, data.axes.length - 1];
  const pick = (values) => indices.map((index) => values[index]);
  return { axes: pick(data.axes), lines: data.lines.map(pick), trials: data.trials };
}

function parallelFigure() {
  const { axes, lines, trials: numbers } = parallelShown();
  const note =
    "One line per trial across the most important parameters; strong: trials on the front; dashed: the selected one. Click a line to select it.";
  if (lines.length < 2) return { title: "Values and outcomes", note, empty: "It takes two complete trials." };
  const colour = colours();
  const onFront = new Set(currentFront().trials);
  const joined = (keep) => {
    const made = { x: [], y: [], customdata: [] };
    lines.forEach((values, index) => {
      if (!keep(numbers[index])) return;
      values.forEach((value, at) => {
        made.x.push(at);
        made.y.push(placeOn(axes[at], value));
        made.customdata.push(numbers[index]);
      });
      made.x.push(null);
      made.y.push(null);
      made.customdata.push(null);
    });
    return made;
  };
  const trace = (name, keep, style) => ({
    type: "scatter",
    mode: "lines",
    name,
    ...joined(keep),
    line: style,
    hovertemplate: "trial %{customdata}<extra></extra>",
    connectgaps: false,
  });
  const ends = (scale) =>
    (scale.kind === "names" ? [scale.names.at(-1), scale.names[0]] : [scale.high, scale.low]).map((value) =>
      scale.name === "sparsity" || (scale.name === "metric" && metric().is_fraction)
        ? percent(value, 1)
        : plain(short(value))
    );
  const narrow = isNarrow();
  const names = axes.map((scale) => plain(scale.name === "metric" ? metric().name : scale.name).replaceAll("_", " "));
  return {
    title: "Which values good trials have in common",
    note,
    alt: `Parallel coordinates of ${counted(lines.length, "trial")} over ${
      axes.map((scale) => scale.name).join(", ")
    }.`,
    traces: [
      trace("trials", (number) => !onFront.has(number), line(faded(colour.faint, 0.4), "solid", 1)),
      trace("front", (number) => onFront.has(number), line(faded(colour.accent, 0.85), "solid", 1.8)),
      trace("selected", (number) => number === state.trial, line(colour.second, "dash", 2.6)),
    ],
    layout: layout(narrow ? 420 : 340, {
      uirevision: "parallel",
      margin: { l: 34, r: 34, t: 24, b: narrow ? 120 : 32 },
      xaxis: axis("", {
        range: [-0.25, axes.length - 0.75],
        tickmode: "array",
        tickvals: axes.map((_, index) => index),
        ticktext: names,
        tickangle: narrow ? -90 : 0,
        showgrid: true,
        gridcolor: colour.line,
        ticks: "",
        showline: false,
        fixedrange: true,
        automargin: true,
      }),
      yaxis: { visible: false, range: [-0.12, 1.1], fixedrange: true },
      annotations: axes.flatMap((scale, index) =>
        ends(scale).map((text, side) =>
          label(text, {
            x: index,
            y: side ? 0 : 1,
            yanchor: side ? "top" : "bottom",
            font: { size: narrow ? 9 : 11, color: colour.quiet },
          })
        )
      ),
      legend: {
        orientation: "h",
        x: 0,
        y: 1.04,
        yanchor: "bottom",
        font: { size: 12, color: colour.quiet },
        bgcolor: "rgba(0,0,0,0)",
      },
    }),
  };
}
