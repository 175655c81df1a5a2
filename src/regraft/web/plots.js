// Plots by plotly, in the colours of the page; drawn anew when the reader's theme changes.
/* global Plotly */

const NUM_LINES = 6;
const DASHES = ["solid", "dash", "dot", "dashdot"];
const redraws = new Map();

// plotly writes styles of drawings as attributes, which the page's policy refuses; as properties they are allowed.
SVGElement.prototype.setAttribute = function setAttribute(name, value) {
  if (name === "style") this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
};

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** plotly reads a little HTML in names: these are names of folders. */
const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

function layout(more) {
  const axis = (title, extra = {}) => ({
    title: { text: title }, gridcolor: colour("--rule"), zerolinecolor: colour("--rule"), linecolor: colour("--field"),
    automargin: true, ...extra,
  });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), family: colour("--sans"), size: 13 },
    margin: { l: 55, r: 12, t: 12, b: 45 },
    showlegend: false, hovermode: "closest",
    ...more(axis),
  };
}

function draw(element, build) {
  const work = () => {
    const { traces, more } = build();
    return Plotly.react(element, traces, layout(more), { responsive: true, displayModeBar: false, staticPlot: false });
  };
  redraws.set(element, work);
  return work();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [element, work] of redraws) if (element.offsetParent) work();
});

/** Lines: [{name, x, y}]. Further lines than colours differ by their dashes. */
export function drawLines(element, lines, { x, y }) {
  return draw(element, () => ({
    traces: lines.map((line, place) => ({
      type: "scatter", name: plain(line.name), x: line.x, y: line.y,
      mode: line.x.length < 40 ? "lines+markers" : "lines",
      line: { color: colour(`--line-${(place % NUM_LINES) + 1}`), width: 2, dash: DASHES[Math.floor(place / NUM_LINES) % DASHES.length] },
      marker: { size: 5 },
    })),
    more: (axis) => ({
      xaxis: axis(x), yaxis: axis(y), showlegend: lines.length > 1,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { l: 55, r: 12, t: lines.length > 1 ? 40 : 12, b: 45 },
    }),
  }));
}

/** A line within its interval. */
export function drawBand(element, { x, y, low, high }, { xTitle, yTitle }) {
  return draw(element, () => ({
    traces: [
      { type: "scatter", x, y: low, mode: "lines", line: { width: 0 }, hoverinfo: "skip" },
      { type: "scatter", x, y: high, mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: `rgb(${colour("--accent-rgb").replaceAll(" ", ",")},0.18)`.replace("rgb(", "rgba("), hoverinfo: "skip" },
      { type: "scatter", x, y, mode: "lines+markers", line: { color: colour("--accent"), width: 2 }, marker: { size: 6 } },
    ],
    more: (axis) => ({ xaxis: axis(xTitle, { rangemode: "tozero" }), yaxis: axis(yTitle, { range: [0, 1.02], tickformat: ".0%" }) }),
  }));
}

/** A table of numbers as colours. `text` is written into the cells. */
export function drawHeat(element, table, { x, y, kind = "numbers", text = null, ticks = null }) {
  return draw(element, () => {
    const scales = {
      cells: [[0, colour("--hidden-cell")], [0.5, colour("--hidden-cell")], [0.5, colour("--accent")], [1, colour("--accent")]],
      numbers: [[0, colour("--line-1")], [0.5, colour("--card")], [1, colour("--line-2")]],
      turns: [[0, colour("--card")], [0.5, colour("--line-4")], [1, colour("--card")]],
    };
    const bounds = { cells: [0, 1], turns: [0, 2 * Math.PI] }[kind];
    const square = kind === "cells" ? { scaleanchor: "x", constrain: "domain" } : {};
    const gap = kind === "cells" ? 1 : 0;
    const named = ticks ? { tickvals: ticks.map((_, place) => place), ticktext: ticks } : {};
    return {
      traces: [{
        type: "heatmap", z: table, colorscale: scales[kind], showscale: kind !== "cells", xgap: gap, ygap: gap,
        ...(bounds ? { zmin: bounds[0], zmax: bounds[1] } : { zmid: 0 }),
        ...(text ? { text, texttemplate: "%{text}", textfont: { size: 10 } } : {}),
        colorbar: { thickness: 12, outlinewidth: 0 }, hoverongaps: false,
        hovertemplate: `${y} %{y}, ${x} %{x}: %{z:.3g}<extra></extra>`,
      }],
      more: (axis) => ({
        xaxis: axis(x, { showgrid: false, zeroline: false, constrain: "domain", ...named }),
        yaxis: axis(y, { autorange: "reversed", showgrid: false, zeroline: false, ...square, ...named }),
      }),
    };
  });
}
