// Plots by plotly, in the colours of the page; drawn again when the reader's theme changes.
/* global Plotly */

const NUM_LINES = 6;
const DASHES = ["solid", "dash", "dot", "dashdot"];
const redraws = new Map();

// plotly writes styles of drawings as attributes, which the page's policy refuses; as properties they are allowed.
// Its drawings, and the hidden one in which it measures: other elements are left alone.
const PLOTLY = ".js-plotly-plot, #js-plotly-tester";
SVGElement.prototype.setAttribute = function setAttribute(name, value) {
  if (name === "style" && this.closest(PLOTLY)) this.style.cssText = value;
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

/** A mask: cells 0 may not be read, 1 may, 2 are padding, which is hatched; `names` of the three, `text` is written into the cells. */
export function drawMask(element, cells, { x, y, names, text, ticks }) {
  const named = { tickvals: ticks.map((_, place) => place), ticktext: ticks };
  const padding = cells.flatMap((line, row) => line.flatMap((cell, column) => (cell === 2 ? [[row, column]] : [])));
  return draw(element, () => {
    const [hidden, read, blank] = [colour("--hidden-cell"), colour("--accent"), colour("--card")];
    const size = Math.max(Math.min(0.6 * element.clientWidth / cells.length, 16), 4);
    return {
      traces: [{
        type: "heatmap", z: cells, zmin: 0, zmax: 2, showscale: false, xgap: 1, ygap: 1,
        colorscale: [[0, hidden], [0.25, hidden], [0.25, read], [0.75, read], [0.75, blank], [1, blank]],
        ...(text ? { text, texttemplate: "%{text}", textfont: { size: 10 } } : {}),
        customdata: cells.map((line) => line.map((cell) => names[cell])),
        hovertemplate: `${y} %{y}, ${x} %{x}: %{customdata}<extra></extra>`,
      }, {
        type: "scatter", mode: "markers", x: padding.map(([, column]) => column), y: padding.map(([row]) => row), hoverinfo: "skip",
        marker: { symbol: "line-ne", size, line: { color: colour("--field"), width: 1 } },
      }],
      more: (axis) => ({
        xaxis: axis(x, { showgrid: false, zeroline: false, constrain: "domain", ...named }),
        yaxis: axis(y, { autorange: "reversed", showgrid: false, zeroline: false, scaleanchor: "x", constrain: "domain", ...named }),
      }),
    };
  });
}

/** A table of numbers as colours; turns go round a circle of colours, in which a quarter and three quarters differ. */
export function drawTable(element, table, { x, y, isTurns }) {
  return draw(element, () => {
    const [start, left, half, right] = [colour("--card"), colour("--line-1"), colour("--ink"), colour("--line-2")];
    const kind = isTurns ? {
      colorscale: [[0, start], [0.25, left], [0.5, half], [0.75, right], [1, start]], zmin: 0, zmax: 2 * Math.PI,
      colorbar: {
        thickness: 12, outlinewidth: 0, tickvals: [0, 0.25, 0.5, 0.75, 1].map((share) => 2 * Math.PI * share),
        ticktext: ["no turn", "¼ turn", "½ turn", "¾ turn", "a turn"],
      },
    } : {
      colorscale: [[0, left], [0.5, start], [1, right]], zmid: 0, colorbar: { thickness: 12, outlinewidth: 0 },
    };
    return {
      traces: [{ type: "heatmap", z: table, hovertemplate: `${y} %{y}, ${x} %{x}: %{z:.3g}<extra></extra>`, ...kind }],
      more: (axis) => ({
        xaxis: axis(x, { showgrid: false, zeroline: false }),
        yaxis: axis(y, { autorange: "reversed", showgrid: false, zeroline: false }),
      }),
    };
  });
}
