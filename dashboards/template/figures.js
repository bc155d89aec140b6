// Every figure: a title that says what to see, a line of explanation, and a drawing made when it comes into sight.
const figures = new Map();

const sight = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) if (entry.isIntersecting) drawNow(figures.get(entry.target.dataset.figure));
  },
  { rootMargin: "300px" },
);

// `describe` gives { title, note, alt, traces, layout }, { title, note, empty } or null for no figure at all.
function register(name, describe, onClick = null) {
  const block = document.querySelector(`figure[data-figure="${name}"]`);
  const caption = element("figcaption", {}, element("h3"), element("p"));
  const plot = element("div", { class: "plot", role: "img", tabindex: onClick ? "0" : null });
  const empty = element("p", { class: "empty", hidden: true });
  block.prepend(caption);
  block.append(plot, empty);
  figures.set(name, { name, block, caption, plot, empty, describe, onClick, isDrawn: false, isStale: true });
  sight.observe(block);
}

function update(name) {
  const figure = figures.get(name);
  figure.isStale = true;
  const description = figure.describe();
  figure.block.hidden = description === null;
  if (description === null) return;
  figure.caption.children[0].textContent = description.title;
  figure.caption.children[1].textContent = description.note ?? "";
  figure.empty.textContent = description.empty ?? "";
  figure.empty.hidden = !description.empty;
  figure.plot.hidden = Boolean(description.empty);
  figure.plot.setAttribute("aria-label", description.alt ?? description.title);
  figure.drawing = description.empty ? null : description;
  figure.plot.style.minHeight = description.empty ? "" : `${description.layout.height}px`;
  const place = figure.block.getBoundingClientRect();
  // A little farther than the observer looks, which only speaks of what comes into sight.
  if (place.top < window.innerHeight + 320 && place.bottom > -320) drawNow(figure);
}

function drawNow(figure) {
  if (!figure || !figure.isStale || !figure.drawing || figure.block.hidden) return;
  figure.isStale = false;
  keepZoom(figure);
  Plotly.react(figure.plot, figure.drawing.traces, figure.drawing.layout, config());
  if (!figure.isDrawn && figure.onClick) figure.plot.on("plotly_click", (event) => figure.onClick(event.points[0]));
  figure.isDrawn = true;
}

// plotly keeps a zoom only while the initial range stays the same, and new trials change it.
function keepZoom(figure) {
  const [before, layout] = [figure.plot.layout, figure.drawing.layout];
  const ranges = Object.fromEntries(
    Object.entries(layout).filter(([, value]) => value?.range).map(([name, value]) => [name, [...value.range]]),
  );
  for (const name of Object.keys(ranges)) {
    const range = before?.uirevision === layout.uirevision && before[name]?.range;
    if (range && String(range) !== String(figure.ranges?.[name])) layout[name] = { ...layout[name], range: [...range] };
  }
  figure.ranges = ranges;
}

const updateAll = (names = [...figures.keys()]) => names.forEach(update);
const drawAll = () => figures.forEach(drawNow);

// A group of radio buttons as one switch.
function showSwitch(parent, name, options, chosen, onChange) {
  parent.hidden = options.length < 2;
  const before = parent.querySelector(":focus")?.value;
  fill(
    parent,
    ...options.map(([value, text]) =>
      element(
        "label",
        {},
        element("input", {
          type: "radio",
          name,
          value,
          checked: value === chosen,
          onchange: () => onChange(value),
        }),
        text,
      )
    ),
  );
  if (before) parent.querySelector(`input[value="${CSS.escape(before)}"]`)?.focus();
}
