// Colours come from the style sheet, so that figures and page change together.
function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["card", "ink", "quiet", "faint", "line", "grid", "accent", "accent-tint", "second", "third", "fourth"];
  return Object.fromEntries(names.map((name) => [name.replace("-t", "T"), style.getPropertyValue(`--${name}`).trim()]));
}

const isNarrow = () => window.innerWidth < 560;

// From the card's colour to the ink of the accent: more is darker on white, and lighter on black.
const sequential = (
  colour,
) => [
  [0, colour.card],
  [0.02, mixed(colour.card, colour.accent, 0.12)],
  [0.5, mixed(colour.card, colour.accent, 0.6)],
  [1, mixed(colour.accent, colour.ink, 0.55)],
];

function mixed(one, other, fraction) {
  const parts = [one, other].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const channels = parts[0].map((low, index) => Math.round(low + (parts[1][index] - low) * fraction));
  return `#${channels.map((channel) => channel.toString(16).padStart(2, "0")).join("")}`;
}

const faded = (hex, alpha) => hex + Math.round(255 * alpha).toString(16).padStart(2, "0");

function axis(title, more = {}) {
  const colour = colours();
  return {
    title: { text: title, font: { size: 12, color: colour.quiet }, standoff: 8 },
    gridcolor: colour.grid,
    linecolor: colour.line,
    tickcolor: colour.line,
    tickfont: { size: 12, color: colour.quiet },
    zeroline: false,
    showline: true,
    ticks: "outside",
    ticklen: 4,
    automargin: true,
    ...more,
  };
}

function layout(height, more = {}) {
  const colour = colours();
  return {
    height,
    autosize: true,
    paper_bgcolor: colour.card,
    plot_bgcolor: colour.card,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour.ink },
    margin: { l: 52, r: 16, t: 8, b: 44 },
    hovermode: "closest",
    hoverlabel: { bgcolor: colour.card, bordercolor: colour.faint, font: { color: colour.ink, size: 12 } },
    legend: {
      orientation: "h",
      x: 0,
      y: 1.02,
      yanchor: "bottom",
      font: { size: 12, color: colour.quiet },
      itemsizing: "trace",
      bgcolor: "rgba(0,0,0,0)",
    },
    dragmode: isNarrow() ? false : "zoom",
    ...more,
  };
}

// Buttons are listed: by default newer versions of plotly offer one that uploads the figure.
const config = () => ({
  responsive: true,
  displaylogo: false,
  displayModeBar: isNarrow() ? false : "hover",
  modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "autoScale2d", "resetScale2d"]],
  doubleClick: "reset+autosize",
});

const line = (colour, dash = "solid", width = 2) => ({ color: colour, dash, width });
const label = (text, more) => ({ text, showarrow: false, font: { size: 12, color: colours().quiet }, ...more });
const vertical = (x, dash) => ({
  type: "line",
  x0: x,
  x1: x,
  yref: "paper",
  y0: 0,
  y1: 1,
  layer: "below",
  line: line(colours().quiet, dash, 1.25),
});
const horizontal = (y, dash) => ({
  type: "line",
  y0: y,
  y1: y,
  xref: "paper",
  x0: 0,
  x1: 1,
  layer: "below",
  line: line(colours().quiet, dash, 1.25),
});

function curve(name, x, y, style, more = {}) {
  return {
    type: "scatter",
    mode: x.length > 1 ? "lines" : "markers",
    name,
    x,
    y,
    line: style,
    marker: { color: style.color, size: 6 },
    ...more,
  };
}
