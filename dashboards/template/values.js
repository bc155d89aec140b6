// The page's values and small ways to show them. Text from a study only ever becomes text, never markup.
const page = JSON.parse(document.getElementById("data").textContent);

const state = { study: 0, axis: "sparsity", growthAxis: "trials", trial: null, layer: null };

const byId = (id) => document.getElementById(id);
const study = () => page.studies[state.study];

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function fill(parent, ...children) {
  parent.replaceChildren(...children);
}

// plotly reads labels as a small HTML; a name is only a name.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const percent = (fraction, digits = 2) => (isNumber(fraction) ? `${(100 * fraction).toFixed(digits)}\u00a0%` : "–");

// The study's metric: a fraction in percent, or a number with a unit of its own.
const metric = (of = study()) => of.metric ?? { name: "accuracy", is_fraction: true };
const metricFactor = (of = study()) => (metric(of).is_fraction ? 100 : 1);
const metricUnit = (of = study()) => (metric(of).is_fraction ? "%" : "");
const metricAxis = (of = study()) => `validation ${plain(metric(of).name)}${metric(of).is_fraction ? ", %" : ""}`;
const shownMetric = (value, of = study()) => (metric(of).is_fraction ? percent(value) : isNumber(value) ? short(value) : "–");

// A KB is 1,024 bytes, as in the terminal.
const KB = 1024;
function size(bytes) {
  if (!isNumber(bytes)) return "–";
  if (bytes < KB) return `${Math.round(bytes)}\u00a0bytes`;
  return bytes < KB * KB ? `${(bytes / KB).toFixed(2)}\u00a0KB` : `${(bytes / KB / KB).toFixed(2)}\u00a0MB`;
}

// The cost metric of a column, if it is one, and a value of it with its unit.
const costOf = (key, of = study()) => of.costs.find((cost) => cost.key === key) ?? null;
const shownCost = (cost, value) => cost.unit === "KB" ? size(value) : `${short(value)}\u00a0${cost.unit}`;

function short(value) {
  if (!isNumber(value)) return value === null || value === undefined ? "" : String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const magnitude = Math.abs(value);
  return magnitude !== 0 && (magnitude < 1e-3 || magnitude >= 1e5)
    ? value.toExponential(2)
    : String(Number(value.toPrecision(4)));
}

function clock(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${seconds < 10 ? seconds.toFixed(1) : whole}\u00a0s`;
  const minutes = Math.floor(whole / 60);
  return minutes < 60
    ? `${minutes}\u00a0min ${whole % 60}\u00a0s`
    : `${Math.floor(minutes / 60)}\u00a0h ${minutes % 60}\u00a0min`;
}

// The trials of a study as objects by column, made once a document.
const trialsOf = (() => {
  const known = new WeakMap();
  return (source) => {
    if (!known.has(source)) {
      const { columns, rows } = source.table;
      known.set(source, rows.map((row) => Object.fromEntries(columns.map((name, index) => [name, row[index]]))));
    }
    return known.get(source);
  };
})();

const trials = () => trialsOf(study());
const trialOf = (number) => trials().find((row) => row.trial === number) ?? null;
const isComplete = (row) => row.state === "complete" && isNumber(row.metric) && isNumber(row.sparsity);
const frontBy = (key) => study().fronts.find((front) => front.measure.key === key) ?? study().fronts[0];
const currentFront = () => frontBy(state.axis);
const detailOf = (number) => study().details[String(number)] ?? null;
const counted = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
