// The Pareto front: the metric against sparsity or a cost. A click selects a trial.
function frontFigure() {
  const { measure, view, headline } = currentFront();
  const title = `${headline}`;
  const note = frontNote(measure, view);
  if (!trials().some(isComplete)) {
    return {
      title: `${metric().name.replace(/^accuracy$/, "Accuracy")} against sparsity`,
      note: "Every finished trial becomes a point here.",
      empty: "No trial has finished yet.",
    };
  }
  return { title, note, alt: frontAlt(measure), traces: frontTraces(), layout: frontLayout() };
}

function frontNote(measure, view) {
  const better = measure.more_is_better ? "up and to the right" : "up and to the left";
  const below = view.below
    ? ` ${counted(view.below, "trial")} far below ${view.below === 1 ? "is" : "are"} outside; a double click shows all.`
    : "";
  const { paper } = study();
  const reference = paper && measure.key === "sparsity"
    ? ` The paper reports ${percent(paper.accuracy)} on the test split, after 200 epochs or more.`
    : "";
  return `Validation ${metric().name} against ${measure.name}, better ${better}. Click a point, or use the arrow keys, to select a trial.${below}${reference}`;
}

function frontAlt(measure) {
  const rows = currentFront().trials.map(trialOf);
  const texts = rows.map((row) =>
    `trial ${row.trial}: ${shownMetric(row.metric)} at ${shownMeasure(measure, row[measure.key])}`
  );
  return `Scatter plot of validation ${metric().name} against ${measure.name}. On the front: ${texts.join("; ")}.`;
}

function shownMeasure(measure, value) {
  if (measure.key === "sparsity") return `${percent(value)} zeros`;
  return shownCost(costOf(measure.key), value);
}

function points(name, rows, marker, more = {}) {
  const { measure } = currentFront();
  return {
    type: "scatter",
    mode: "markers",
    name,
    x: rows.map((row) => measure.factor * row[measure.key]),
    y: rows.map((row) => metricFactor() * row.metric),
    customdata: rows.map((row) => row.trial),
    text: rows.map((row) =>
      `trial ${row.trial}<br>${shownMetric(row.metric)} ${plain(metric().name)}<br>${shownMeasure(measure, row[measure.key])}`
    ),
    hovertemplate: "%{text}<extra></extra>",
    marker,
    ...more,
  };
}

function frontTraces() {
  const colour = colours();
  const { measure, outline, trials: best } = currentFront();
  const known = trials().filter((row) => isComplete(row) && isNumber(row[measure.key]));
  const onFront = new Set(best);
  const of = (numbers) => known.filter((row) => numbers.has(row.trial));
  const traces = [
    {
      type: "scatter",
      mode: "lines",
      x: outline.map(([x]) => measure.factor * x),
      y: outline.map(([, y]) => metricFactor() * y),
      line: line(colour.accent),
      hoverinfo: "skip",
      showlegend: false,
    },
    ...pausedTraces(measure),
    points("trials", known.filter((row) => !onFront.has(row.trial)), { color: colour.faint, size: 7, opacity: 0.7 }),
    points("front", of(onFront), { color: colour.accent, size: 9, line: { color: colour.card, width: 1.5 } }),
    ...refitTraces(known),
    ...paperTraces(measure),
  ];
  const chosen = of(new Set([study().chosen]));
  if (chosen.length) {
    traces.push(
      points(onFront.has(chosen[0].trial) ? "chosen" : "chosen, not on the front", chosen, {
        color: colour.second,
        size: 15,
        symbol: "star",
        line: { color: colour.card, width: 1.2 },
      }),
    );
  }
  const selected = of(new Set([state.trial]));
  if (selected.length) {
    traces.push(
      points("selected", selected, { color: colour.ink, size: 24, symbol: "circle-open", line: { width: 2 } }, {
        hoverinfo: "skip",
        hovertemplate: null,
        showlegend: false,
      }),
    );
  }
  return traces;
}

// A paused trial is drawn with its metric at the last rung and its planned sparsity.
function pausedTraces(measure) {
  const rows = trials().filter((row) =>
    row.state === "paused" && isNumber(row.rung_metric) && isNumber(row.planned_sparsity)
  );
  if (measure.key !== "sparsity" || !rows.length) return [];
  const shown = rows.map((row) => ({ ...row, metric: row.rung_metric, sparsity: row.planned_sparsity }));
  return [points("paused", shown, { color: colours().faint, size: 7, symbol: "circle-open", opacity: 0.45 })];
}

function refitTraces(known) {
  const repeated = known.map((row) => ({ ...row, seeds: [row.metric, ...detailOf(row.trial)?.refits ?? []] })).filter((row) =>
    row.seeds.length > 1
  );
  if (!repeated.length) return [];
  const error = {
    type: "data",
    symmetric: false,
    array: repeated.map((row) => metricFactor() * (Math.max(...row.seeds) - row.metric)),
    arrayminus: repeated.map((row) => metricFactor() * (row.metric - Math.min(...row.seeds))),
    color: colours().ink,
    thickness: 1.4,
    width: 5,
  };
  return [
    points("trial and its refits", repeated, { size: 1, opacity: 0 }, {
      error_y: error,
      hoverinfo: "skip",
      hovertemplate: null,
      showlegend: false,
    }),
  ];
}

function paperTraces(measure) {
  const { paper } = study();
  if (measure.key !== "sparsity" || !paper?.points.length) return [];
  return [{
    type: "scatter",
    mode: "markers",
    name: "the paper, test",
    x: paper.points.map(([x]) => 100 * x),
    y: paper.points.map(([, y]) => 100 * y),
    marker: { symbol: "x-thin", size: 7, line: { color: colours().third, width: 1.5 } },
    hovertemplate: "the paper: %{y:.2f} % test accuracy<br>%{x:.2f} % zeros<extra></extra>",
  }];
}

function frontLayout() {
  const { measure, view } = currentFront();
  const { dense_metric: dense, goal } = study();
  const shapes = [];
  const notes = [];
  if (isNumber(dense)) {
    shapes.push(horizontal(metricFactor() * dense, "dot"));
    notes.push(
      label(`dense ${shownMetric(dense)}`, {
        xref: "paper",
        x: 0,
        y: metricFactor() * dense,
        xanchor: "left",
        yanchor: "bottom",
      }),
    );
  }
  if (isNumber(goal[measure.key])) {
    const isRight = goal[measure.key] > (view.x[0] + view.x[1]) / 2;
    const at = measure.factor * goal[measure.key];
    shapes.push(vertical(at, "dash"));
    notes.push(
      label(`goal ${short(at)} ${measure.unit}`, {
        x: at,
        yref: "paper",
        y: 0,
        yanchor: "bottom",
        xanchor: isRight ? "right" : "left",
      }),
    );
  }
  if (isNumber(goal.metric)) {
    shapes.push(horizontal(metricFactor() * goal.metric, "dash"));
    notes.push(
      label(`goal ${short(metricFactor() * goal.metric)} ${metricUnit()}`, {
        xref: "paper",
        x: 1,
        y: metricFactor() * goal.metric,
        xanchor: "right",
        yanchor: "bottom",
      }),
    );
  }
  return layout(isNarrow() ? 380 : 460, {
    shapes,
    annotations: notes,
    uirevision: `${state.study} ${measure.key}`,
    // Fixed: plotly would lay a thousand points out a second time to fit the labels.
    margin: { l: 58, r: 20, t: isNarrow() ? 64 : 40, b: 52 },
    xaxis: axis(`${measure.title}, ${measure.unit}`, {
      automargin: false,
      range: view.x.map((x) => measure.factor * x),
    }),
    yaxis: axis(metricAxis(), { automargin: false, range: view.metric.map((y) => metricFactor() * y) }),
  });
}

// Left and right go along the measure, also without a mouse.
function stepSelection(step) {
  const { measure } = currentFront();
  const rows = trials().filter((row) => isComplete(row) && isNumber(row[measure.key])).sort((a, b) =>
    a[measure.key] - b[measure.key] || a.metric - b.metric
  );
  const place = rows.findIndex((row) => row.trial === state.trial);
  const next = rows[Math.min(rows.length - 1, Math.max(0, place + step))];
  if (next) select(next.trial);
}

function showAxes() {
  showSwitch(
    byId("axis"),
    "axis",
    study().fronts.map(({ measure }) => [measure.key, measure.name]),
    currentFront().measure.key,
    (key) => {
      state.axis = key;
      update("front");
    },
  );
}
