// Draws what the server computed. No statistics are made here: every number is the JSON's.
"use strict";

const Charts = (() => {
  const MANY = 40; // values: above this, bars stand upright without room for every name

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const names = ["ink", "quiet", "line", "panel", "bar", "interval", "projected", "pooled", "truth", "accent"];
    return Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
  }

  function layout(c, more) {
    const axis = { title: { font: { size: 13 } }, gridcolor: c.line, zerolinecolor: c.quiet, linecolor: c.line, automargin: true, fixedrange: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 13, color: c.ink },
      margin: { l: 10, r: 14, t: 10, b: 40 },
      hoverlabel: { bgcolor: c.panel, bordercolor: c.line, font: { color: c.ink } },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", xanchor: "left" },
      transition: { duration: 0 },
      ...more,
      xaxis: merged(axis, more.xaxis),
      yaxis: merged(axis, more.yaxis),
    };
  }

  const merged = (axis, more) => ({ ...axis, ...more, title: { ...axis.title, ...more.title } });

  function draw(box, traces, shape) {
    return Plotly.react(box, traces, shape, { displayModeBar: false, responsive: true });
  }

  const percent = (x) => 100 * x;

  // The chart library reads tags in texts; what a manifest says is text and nothing else.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  // The interval is a line from low to high: clipped to 0 and 1, it may lie beside the raw bar.
  function round(box, results, all, truth) {
    const rows = results[0].histogram;
    const c = colours();
    const names = rows.map((row) => plain(row.value));
    const upright = names.length > MANY;
    const along = upright ? { v: "x", n: "y" } : { v: "y", n: "x" };
    const put = (values, numbers) => ({ [along.v]: values, [along.n]: numbers });
    const [low, high] = all ? ["low_all", "high_all"] : ["low", "high"];
    const traces = [
      { type: "bar", name: "raw", orientation: upright ? "v" : "h", marker: { color: c.bar }, width: 0.62,
        ...put(names, rows.map((row) => percent(row.raw))),
        hovertemplate: upright ? "%{x}: raw %{y:.1f} %<extra></extra>" : "%{y}: raw %{x:.1f} %<extra></extra>" },
      { type: "scatter", mode: "lines+markers", name: all ? "95 % interval for all at once" : "95 % interval",
        ...put(names.flatMap((name) => [name, name, null]),
               rows.flatMap((row) => [percent(row[low]), percent(row[high]), null])),
        line: { color: c.interval, width: 2 }, connectgaps: false,
        marker: { symbol: upright ? "line-ew-open" : "line-ns-open", size: 9, color: c.interval, line: { width: 2, color: c.interval } },
        hovertemplate: upright ? "%{x}: %{y:.1f} %<extra></extra>" : "%{y}: %{x:.1f} %<extra></extra>" },
      { type: "scatter", mode: "markers", name: "projected",
        ...put(names, rows.map((row) => percent(row.projected))),
        marker: { symbol: "diamond", size: 9, color: c.projected },
        hovertemplate: upright ? "%{x}: projected %{y:.1f} %<extra></extra>" : "%{y}: projected %{x:.1f} %<extra></extra>" },
    ];
    if (truth) {
      traces.push({ type: "scatter", mode: "lines+markers", name: "simulated truth", connectgaps: false,
        ...put(names.flatMap((name) => [name, name, null]), truth.flatMap((f) => [0, percent(f), null])),
        line: { color: c.truth, width: 2, dash: "dot" },
        marker: { symbol: "circle-open", size: names.flatMap(() => [0, 9, 0]), color: c.truth, line: { width: 2 } },
        hovertemplate: upright ? "%{x}: truth %{y:.1f} %<extra></extra>" : "%{y}: truth %{x:.1f} %<extra></extra>" });
    }
    const numbers = { title: { text: "per cent of devices" }, rangemode: "tozero", zeroline: true };
    const values = { type: "category", ...(upright ? {} : { autorange: "reversed" }), showgrid: false };
    const height = upright ? 420 : 110 + 34 * names.length;
    return draw(box, traces, layout(c, { height, bargap: 0.3, xaxis: upright ? values : numbers, yaxis: upright ? numbers : values }));
  }

  // The distribution function at the edges of bins, with the band that holds for all of them.
  function cdf(box, numbers, truth) {
    const c = colours();
    const kept = numbers.edges.map((edge, i) => i).filter((i) => numbers.edges[i] !== null);
    const x = kept.map((i) => numbers.edges[i]);
    const of = (list) => kept.map((i) => percent(list[i]));
    const traces = [
      { type: "scatter", mode: "lines", x, y: of(numbers.cdf_low), line: { width: 0 }, hoverinfo: "skip", showlegend: false },
      { type: "scatter", mode: "lines", x, y: of(numbers.cdf_high), line: { width: 0 }, fill: "tonexty", fillcolor: fade(c.bar, 0.35), name: "95 % band for all edges", hoverinfo: "skip" },
      { type: "scatter", mode: "lines+markers", x, y: of(numbers.cdf), line: { color: c.accent, width: 2 }, marker: { size: 7, color: c.accent }, name: "share below", hovertemplate: "below %{x}: %{y:.1f} %<extra></extra>" },
    ];
    const median = numbers.quantiles.find((q) => q.tau === 0.5);
    if (median && median.value !== null) {
      const low = median.low === null ? x[0] : median.low, high = median.high === null ? x[x.length - 1] : median.high;
      traces.push({ type: "scatter", mode: "lines", x: [low, high], y: [50, 50], line: { color: c.projected, width: 3 }, name: "median and its interval", hoverinfo: "skip" });
      traces.push({ type: "scatter", mode: "markers", x: [median.value], y: [50], marker: { symbol: "diamond", size: 10, color: c.projected }, showlegend: false, name: "median", hovertemplate: "median %{x:.4g}<extra></extra>" });
    }
    if (truth) {
      const bins = truth.slice(0, numbers.edges.length + (numbers.cdf[numbers.cdf.length - 1] === 1 ? 0 : 1));
      const all = bins.reduce((sum, f) => sum + f, 0);
      let below = 0;
      const sums = bins.map((f) => (below += f) / all);
      traces.push({ type: "scatter", mode: "lines", x, y: of(sums), line: { color: c.truth, width: 2, dash: "dot" }, name: "simulated truth", hovertemplate: "truth %{y:.1f} %<extra></extra>" });
    }
    return draw(box, traces, layout(c, { height: 360,
      xaxis: { title: { text: plain(numbers.unit || "number") }, zeroline: false },
      yaxis: { title: { text: "per cent of devices below" }, range: [-3, 103], zeroline: false } }));
  }

  const medianOf = (numbers) => numbers.quantiles.find((q) => q.tau === 0.5);

  // What a result says of the chosen value, median or mean: [estimate, low, high], or null.
  function chosenOf(result, chosen) {
    if (typeof chosen === "number") {
      const row = result.histogram[chosen];
      return [row.raw, row.low, row.high].map(percent);
    }
    const numbers = result.numbers;
    if (!numbers) return null;
    const q = medianOf(numbers);
    const found = chosen === "mean" ? [numbers.mean, numbers.mean_low, numbers.mean_high] : [q.value, q.low, q.high];
    return found[0] === null ? null : [found[0], found[1] === null ? found[0] : found[1], found[2] === null ? found[0] : found[2]];
  }

  // Rounds stand where they were in time; a window stands in the middle of its rounds.
  function overTime(box, facts, chosen) {
    const c = colours();
    const measured = typeof chosen === "string";
    const shown = facts.rounds.filter((result) => !result.withheld && chosenOf(result, chosen) !== null);
    const first = (result) => (result.first === null ? result.round : result.first);
    const last = (result) => (result.last === null ? result.round : result.last);
    const middle = (result) => new Date((Date.parse(result.opens) + Date.parse(result.closes)) / 2).toISOString();
    const x = shown.map(middle);
    const names = shown.map((result) => (first(result) === last(result) ? `round ${last(result)}` : `rounds ${first(result)} to ${last(result)}`));
    const at = (i) => shown.map((result) => chosenOf(result, chosen)[i]);
    const windows = shown.some((result) => first(result) !== last(result));
    const unit = measured ? "" : " %";
    const pooled = facts.pooled && !facts.pooled.withheld ? chosenOf(facts.pooled, chosen) : null;
    const ends = [facts.rounds[0].opens, facts.rounds[facts.rounds.length - 1].closes];
    const together = facts.reporting === "once" ? "all released" : facts.reporting === "nested" ? "latest" : "pooled";
    const traces = [];
    if (pooled) {
      traces.push({ type: "scatter", mode: "lines", x: [ends[0], ends[1], ends[1], ends[0], ends[0]],
        y: [pooled[1], pooled[1], pooled[2], pooled[2], pooled[1]],
        fill: "toself", fillcolor: fade(c.pooled, 0.2), line: { width: 0 }, name: `95 % interval, ${together}`, hoverinfo: "skip" });
    }
    // A window's interval is as long as the window: its band stands from its first to its last round.
    const along = windows ? shown.flatMap((result) => [result.opens, result.closes]) : x;
    const band = (i) => (windows ? at(i).flatMap((end) => [end, end]) : at(i));
    traces.push(
      { type: "scatter", mode: "lines", x: along, y: band(1), line: { width: 0 }, hoverinfo: "skip", showlegend: false },
      { type: "scatter", mode: "lines", x: along, y: band(2), line: { width: 0 }, fill: "tonexty", fillcolor: fade(c.bar, 0.35), name: windows ? "95 % interval of a window" : "95 % interval of a round", hoverinfo: "skip" },
      { type: "scatter", mode: "lines+markers", x, y: at(0), customdata: names, line: { color: c.accent, width: 2 }, marker: { size: 6, color: c.accent }, name: measured ? chosen : "raw", hovertemplate: `%{customdata}, %{x|%Y-%m-%d %H:%M}: %{y:.4g}${unit}<extra></extra>` },
    );
    const level = (name, value, dash, colour, width) => traces.push({ type: "scatter", mode: "lines", name, x: ends, y: [value, value], line: { color: colour, width, dash }, hovertemplate: name + " %{y:.4g}" + unit + "<extra></extra>" });
    if (pooled && !measured && ["memoized", "hashed"].includes(facts.reporting)) {
      const reach = percent(facts.floor[chosen]);
      traces.push({ type: "scatter", mode: "lines", x: [ends[0], ends[1], ends[1], ends[0], ends[0]],
        y: [pooled[0] - reach, pooled[0] - reach, pooled[0] + reach, pooled[0] + reach, pooled[0] - reach],
        line: { width: 1, dash: "dash", color: c.pooled }, name: "floor of first-stage noise", hoverinfo: "skip" });
    }
    if (pooled) level(together, pooled[0], "solid", c.pooled, 2);
    if (facts.truth && !measured) level("simulated truth", percent(facts.truth[chosen]), "dot", c.truth, 2.5);
    return draw(box, traces, layout(c, { height: 430,
      xaxis: { title: { text: "UTC" }, type: "date", zeroline: false, range: ends, tickangle: 0, nticks: box.clientWidth < 480 ? 3 : 0 },
      yaxis: { title: { text: measured ? plain(`${chosen} ${unitOf(facts)}`) : "per cent of devices, raw" } } }));
  }

  const unitOf = (facts) => (facts.rounds.find((result) => result.numbers) || { numbers: { unit: "" } }).numbers.unit;

  function planner(box, plan) {
    const c = colours();
    const palette = [c.accent, c.projected, c.pooled, c.truth];
    const distinct = plan.attributes.filter((a, i) => i === 0 || JSON.stringify({ ...a, name: "" }) !== JSON.stringify({ ...plan.attributes[0], name: "" }));
    const traces = distinct.flatMap((a, i) => {
      const colour = palette[i % palette.length];
      const rounds = Object.keys(a.half_width_pooled);
      const label = distinct.length > 1 ? a.name + ": " : "";
      return [
        { type: "scatter", mode: "lines+markers", name: label + "half-width", x: rounds, y: Object.values(a.half_width_pooled).map(percent), line: { color: colour, width: 2 }, marker: { size: 8 }, hovertemplate: "%{x} rounds: ±%{y:.2f} points<extra></extra>" },
        { type: "scatter", mode: "lines", name: label + "floor", x: rounds, y: rounds.map(() => percent(a.floor)), line: { color: colour, width: 1.5, dash: "dash" }, hovertemplate: "floor ±%{y:.2f} points<extra></extra>" },
      ];
    });
    return draw(box, traces, layout(c, { height: 360,
      xaxis: { title: { text: "rounds pooled" }, type: "category" },
      yaxis: { title: { text: "± points" }, rangemode: "tozero" } }));
  }

  function fade(colour, alpha) {
    const value = Number.parseInt(colour.slice(1), 16);
    return `rgba(${value >> 16},${(value >> 8) & 255},${value & 255},${alpha})`;
  }

  return { round, cdf, overTime, planner };
})();
