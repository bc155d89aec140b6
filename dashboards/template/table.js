// All trials: sorted by a heading, filtered by words and comparisons, downloaded as CSV.
const table = { sort: "trial", isDown: false, isWhole: false };
const FIRST_ROWS = 100;
const METRICS = new Set(["metric", "soft_metric", "rounded_metric", "rung_metric"]);
const FRACTIONS = new Set(["sparsity", "planned_sparsity", "adjusted_fraction", "sparsity_before"]);
const HIDDEN = new Set(["candidate", "images", "started", "metric_error"]);
const NAMES = {
  adjusted_fraction: "adjusted",
  planned_sparsity: "planned",
  soft_metric: "soft",
  rounded_metric: "rounded",
  sparsity_before: "before exact step",
  rung_metric: "at last rung",
};
const heading = (name) =>
  name === "metric" ? metric().name : costOf(name)?.label ?? NAMES[name] ?? name.replace(/^param\./, "").replaceAll("_", " ");

function tableColumns() {
  const { columns, searched } = study().table;
  const hidden = new Set(byId("searched").checked ? [] : searched);
  const isIdle = (name) => name === "off_target" && !trials().some((row) => row[name]);
  return columns.filter((name) => !hidden.has(name) && !HIDDEN.has(name) && !name.startsWith("rung.") && !isIdle(name));
}

function cellText(name, value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "boolean") return value ? "yes" : "";
  if (METRICS.has(name) && isNumber(value)) return shownMetric(value);
  if (FRACTIONS.has(name) && isNumber(value)) return percent(value, name === "sparsity" || name === "adjusted_fraction" ? 3 : 2);
  if (costOf(name) && isNumber(value)) return shownCost(costOf(name), value);
  if (name === "seconds" && isNumber(value)) return value.toFixed(1);
  return short(value);
}

// "sparsity>=90%" compares a column, anything else must occur somewhere in the row.
function rowFilter(text) {
  const tests = text.trim().split(/\s+/).filter(Boolean).map((word) => {
    const [, name, sign, value] = word.match(/^([A-Za-z_][\w.-]*)(<=|>=|=|<|>)(.+)$/) ?? [];
    const requested = name === metric().name ? "metric" : name;
    const column = requested &&
      study().table.columns.find((each) => [each, each.replace(/^param\./, "")].some((name) => name.startsWith(requested)));
    if (!column) {
      return (row) =>
        study().table.columns.some((each) => cellText(each, row[each]).toLowerCase().includes(word.toLowerCase()));
    }
    const limit = value.endsWith("%") ? Number(value.slice(0, -1)) / 100 : Number(value);
    if (Number.isNaN(limit)) return (row) => String(row[column] ?? "").toLowerCase() === value.toLowerCase();
    const compare = {
      "<": (a) => a < limit,
      ">": (a) => a > limit,
      "<=": (a) => a <= limit,
      ">=": (a) => a >= limit,
      "=": (a) => Math.abs(a - limit) < 1e-9,
    }[sign];
    return (row) => isNumber(row[column]) && compare(row[column]);
  });
  return (row) => tests.every((test) => test(row));
}

function tableRows() {
  const sign = table.isDown ? -1 : 1;
  const order = (a, b) => {
    const [one, other] = [a[table.sort], b[table.sort]];
    const missing = (one === null || one === undefined) - (other === null || other === undefined);
    if (missing) return missing; // missing values come last
    return sign * (isNumber(one) && isNumber(other) ? one - other : String(one).localeCompare(String(other))) ||
      a.trial - b.trial;
  };
  return trials().filter(rowFilter(byId("filter").value)).sort(order);
}

function showTable() {
  const columns = tableColumns();
  const rows = tableRows();
  const shown = table.isWhole ? rows : rows.slice(0, FIRST_ROWS);
  const isText = (name) =>
    typeof trials().find((row) => row[name] !== null && row[name] !== undefined)?.[name] === "string";
  const texts = new Set(columns.filter(isText));
  const heads = columns.map((name) =>
    element(
      "th",
      {
        scope: "col",
        class: texts.has(name) ? "text" : null,
        "aria-sort": table.sort === name ? (table.isDown ? "descending" : "ascending") : null,
      },
      element(
        "button",
        { type: "button", "data-sort": name, onclick: () => sortBy(name) },
        heading(name),
        table.sort === name ? (table.isDown ? " ↓" : " ↑") : "",
      ),
    )
  );
  const cell = (row, name) =>
    name === "trial"
      ? element(
        "td",
        {},
        element("button", {
          type: "button",
          onclick: () => {
            select(row.trial);
            byId("trial").scrollIntoView();
          },
        }, `${row.trial}${row.trial === study().chosen ? " ★" : ""}`),
      )
      : element("td", {
        class: texts.has(name) ? "text" : null,
        title: texts.has(name) && row[name] ? row[name] : null,
      }, cellText(name, row[name]));
  const style = (row) =>
    [row.trial === state.trial ? "selected" : "", row.state === "complete" ? "" : "faint"].join(" ").trim() || null;
  const body = shown.map((row) =>
    element("tr", { class: style(row), "data-trial": row.trial }, ...columns.map((name) => cell(row, name)))
  );
  const focused = document.activeElement?.dataset?.sort;
  fill(
    byId("table"),
    trials().length
      ? element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body))
      : element("p", { class: "empty" }, "No trial has finished yet."),
  );
  if (focused) byId("table").querySelector(`[data-sort="${CSS.escape(focused)}"]`)?.focus();
  byId("table-count").textContent = rows.length === trials().length
    ? counted(rows.length, "trial")
    : `${rows.length.toLocaleString("en")} of ${counted(trials().length, "trial")}`;
  byId("more").hidden = shown.length === rows.length;
  byId("more").textContent = `Show all ${rows.length.toLocaleString("en")}`;
}

function sortBy(name) {
  table.isDown = table.sort === name ? !table.isDown : ["metric", "sparsity"].includes(name);
  table.sort = name;
  showTable();
}

function csvCell(value) {
  if (value === null || value === undefined) return "";
  let text = String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`; // a spreadsheet would run it
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function downloadCsv() {
  const { columns } = study().table;
  const lines = [columns, ...tableRows().map((row) => columns.map((name) => row[name]))].map((cells) =>
    cells.map(csvCell).join(",")
  );
  const address = URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
  const name = study().name.replace(/[^\w.-]+/g, "-").replace(/^[-.]+/, "") || "study";
  element("a", { href: address, download: `${name}-trials.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

function showSetup() {
  const { spec, overview, versions, commands } = study().setup;
  const all = [...overview, ...Object.entries(versions)].map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))
  );
  fill(
    byId("setup-card"),
    ...(commands.length
      ? [
        element("h3", {}, commands.length > 1 ? "Commands" : "Command"),
        ...commands.map((command) => element("pre", {}, element("code", {}, command))),
        element("br"),
      ]
      : []),
    element("dl", { class: "overview" }, ...all),
    element(
      "details",
      {},
      element("summary", {}, "The resolved study file"),
      element("pre", {}, element("code", {}, spec)),
    ),
  );
}
