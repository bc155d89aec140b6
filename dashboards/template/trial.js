// The selected trial: which it is, what it gave, and how to take it home.
const trialFigures = ["layers", "cost", "accuracy", "schedules", "distribution"];

function showTrial() {
  const row = trialOf(state.trial);
  const detail = row && detailOf(row.trial);
  byId("trial-heading").textContent = row ? `Trial ${row.trial}` : "No trial yet";
  fill(byId("trial-about"), ...(row ? aboutTrial(row, detail) : []));
  byId("command").hidden = !row || row.state !== "complete";
  byId("command-text").textContent = row ? `${study().command} ${row.trial}` : "";
  const why = !row ? "The first finished trial is shown here." : trialRemark(row, detail);
  byId("trial-empty").hidden = !why;
  byId("trial-empty").textContent = why;
  byId("trial-figures").hidden = !detail;
  updateAll(trialFigures);
}

function trialRemark(row, detail) {
  if (detail) return "";
  if (row.state === "failed") return `This trial failed: ${row.reason || "unknown reason"}.`;
  if (row.state !== "complete") return `This trial is ${row.state}; only complete trials have details.`;
  return page.live
    ? "Fetching its details …"
    : "To stay small, the page keeps details of the front and of the newest trials. The live page (sca-search dashboard RUN --live) has them all.";
}

function aboutTrial(row, detail) {
  const bits = [];
  if (isComplete(row)) {
    bits.push(
      element("b", {}, shownMetric(row.metric)),
      ` ${metric().name} with `,
      element("b", {}, percent(row.sparsity, 3)),
      " zeros",
    );
  } else bits.push(element("b", {}, row.state));
  if (row.trial === study().chosen) bits.push(` · chosen: ${study().model.reason}`);
  if (currentFront().trials.includes(row.trial)) bits.push(" · on the front");
  if (detail?.exported.refit) bits.push(` · exported: refit ${detail.exported.refit} with ${shownMetric(detail.exported.metric)}`);
  if (detail?.refits.length) bits.push(` · refits: ${detail.refit_text}`);
  if (isNumber(row.adjusted_fraction))
    bits.push(` · ${percent(row.adjusted_fraction, 3)} of the weights adjusted by the exact step`);
  if (isNumber(row.seconds)) bits.push(` · ${clock(row.seconds)}`);
  return bits;
}

function showTrialPicker() {
  const picker = byId("trial-picker");
  const onFront = new Set(currentFront().trials);
  const optionText = (row) =>
    `${row.trial}${row.trial === study().chosen ? " ★" : onFront.has(row.trial) ? " •" : ""} — ${
      isComplete(row) ? `${shownMetric(row.metric)} at ${percent(row.sparsity, 1)}` : row.state
    }`;
  fill(
    picker,
    ...trials().map((row) => element("option", { value: row.trial, selected: row.trial === state.trial }, optionText(row))),
  );
  picker.disabled = !trials().length;
}

async function copyCommand() {
  const text = byId("command-text").textContent;
  try {
    await navigator.clipboard.writeText(text);
    byId("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(byId("command-text"));
    byId("copy").textContent = "Selected";
  }
  setTimeout(() => {
    byId("copy").textContent = "Copy";
  }, 1500);
}
