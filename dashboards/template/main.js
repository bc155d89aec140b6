// Brings the parts together: selection, switching of studies, printing, and changes of colour.
function select(trial) {
  if (trial === null || trial === undefined || trial === state.trial) return;
  state.trial = trial;
  history.replaceState(null, "", `#trial=${trial}`);
  showSelection();
}

function showSelection() {
  if (page.live && trialOf(state.trial)?.state === "complete" && !detailOf(state.trial)) fetchDetail(state.trial);
  byId("trial-picker").value = String(state.trial);
  byId("export-said").hidden = true;
  showTrial();
  showFeatures();
  updateAll(["front", "alpha", "parallel"]);
  for (const row of byId("table").querySelectorAll("tr[data-trial]")) {
    row.classList.toggle("selected", Number(row.dataset.trial) === state.trial);
  }
}

function defaultTrial() {
  const complete = trials().filter(isComplete);
  return study().chosen ?? frontBy("sparsity").trials.at(-1) ?? complete.at(-1)?.trial ?? trials()[0]?.trial ?? null;
}

function showStatus() {
  const { kind, text } = study().status;
  byId("status").hidden = isComparison();
  byId("status").dataset.kind = kind;
  byId("status").textContent = text;
}

function showHead() {
  showStatus();
  if (!isComparison()) byId("lead").textContent = study().lead;
  byId("tiles").hidden = isComparison();
  fill(
    byId("tiles"),
    ...study().tiles.map(([name, value, remark]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value, element("small", {}, remark)))
    ),
  );
}

// Everything anew from the document; zoom, selection, filter and place stay.
function refresh() {
  if (!trialOf(state.trial)) state.trial = defaultTrial();
  if (page.live && trialOf(state.trial)?.state === "complete" && !detailOf(state.trial)) fetchDetail(state.trial);
  showComparison();
  showHead();
  showAxes();
  showGrowthAxes();
  showLayerPicker();
  showTrialPicker();
  showTrial();
  showFeatures();
  showTable();
  showSetup();
  updateAll([...figures.keys()].filter((name) => !trialFigures.includes(name)));
}

function showStudy(index) {
  state.study = index;
  state.trial = defaultTrial();
  state.layer = null;
  refresh();
}

function registerFigures() {
  const follow = (point) => select(point.customdata);
  register("compare", compareFigure);
  register("compare-growth", compareGrowthFigure);
  register("front", frontFigure, follow);
  register("layers", layersFigure);
  register("accuracy", accuracyFigure);
  register("distribution", distributionFigure);
  register("schedules", schedulesFigure);
  register("cost", costFigure);
  register("alpha", alphaFigure, follow);
  register("achieved", achievedFigure);
  register("growth", growthFigure);
  register("importance", importanceFigure);
  register("parallel", parallelFigure, follow);
  register("timeline", timelineFigure, follow);
  register("sensitivity", sensitivityFigure);
}

function listen() {
  byId("trial-picker").addEventListener("change", (event) => select(Number(event.target.value)));
  byId("study-picker").addEventListener("change", (event) => showStudy(Number(event.target.value)));
  byId("layer-picker").addEventListener("change", (event) => {
    state.layer = event.target.value;
    updateAll(["alpha", "achieved"]);
  });
  byId("filter").addEventListener("input", showTable);
  byId("searched").addEventListener("change", showTable);
  byId("more").addEventListener("click", () => {
    table.isWhole = true;
    showTable();
  });
  byId("csv").addEventListener("click", downloadCsv);
  byId("copy").addEventListener("click", copyCommand);
  figures.get("front").plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      event.preventDefault();
      stepSelection(step);
    }
  });
  const repaint = () => {
    updateAll();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  matchMedia("print").addEventListener("change", () => {
    updateAll();
    drawAll();
  });
  matchMedia("(max-width: 560px)").addEventListener("change", repaint);
  window.addEventListener("beforeprint", () => {
    updateAll();
    drawAll();
  });
}

registerFigures();
state.trial = Number(location.hash.match(/^#trial=(\d+)$/)?.[1] ?? NaN);
if (!trialOf(state.trial)) state.trial = defaultTrial();
listen();
refresh();
if (page.live) goLive();
document.body.dataset.readyMilliseconds = Math.round(performance.now());
document.body.dataset.ready = "yes";
