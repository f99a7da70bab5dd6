// Keeps the page as fresh as the data, and draws the chart. Without it the page is whole, but still.
"use strict";

const QUIET = 10000; // a screen reader hears of changes at most this often
const AGAIN = 10000;

document.documentElement.classList.add("scripted");

const chart = document.getElementById("chart");
const figure = document.getElementById("figure");
const drawing = chart && typeof Charts !== "undefined" && typeof Plotly !== "undefined";
let source = chart ? chart.dataset.source : null;
let drawn = null; // the JSON that the chart shows
let all = new URLSearchParams(location.search).get("intervals") === "all";

// --- the chart ---------------------------------------------------------------------------------

function redraw() {
  if (!drawing || drawn === null) return;
  const kind = chart.dataset.kind;
  const empty = kind === "round" ? drawn[0].withheld : kind === "over-time" ? !drawn.rounds.some((r) => !r.withheld) : false;
  figure.hidden = empty;
  if (empty) return;
  const truth = chart.dataset.truth ? JSON.parse(chart.dataset.truth) : null;
  if (kind === "round") Charts.round(chart, drawn, all, truth);
  if (kind === "round") redrawDistribution(truth);
  const chosen = chart.dataset.chosen;
  if (kind === "over-time") Charts.overTime(chart, drawn, /^\d+$/.test(chosen) ? Number(chosen) : chosen);
  if (kind === "planner") Charts.planner(chart, drawn);
  chart.dataset.drawn = String(Number(chart.dataset.drawn || 0) + 1);
}

function redrawDistribution(truth) {
  const box = document.getElementById("cdf"), numbers = drawn[0].numbers;
  if (!box) return;
  document.getElementById("figure-cdf").hidden = numbers === null;
  if (numbers !== null) Charts.cdf(box, numbers, truth);
}

// Returns when the numbers were made, by the server's clock.
async function load() {
  if (!source || !drawing) return Infinity;
  const answer = await fetch(source, { cache: "no-store" });
  if (!answer.ok) return Infinity;
  drawn = await answer.json();
  redraw();
  return Number(answer.headers.get("X-Made"));
}

const button = document.getElementById("simultaneous");
if (button) {
  const each = "Each interval holds its own value's true frequency with 95 % confidence.";
  const every = "With 95 % confidence all intervals hold their values at once: use these for bars that you picked by looking.";
  const show = () => {
    button.setAttribute("aria-checked", String(all));
    document.getElementById("interval-name").textContent = all ? every : each;
    applyIntervals();
    redraw();
  };
  button.addEventListener("click", () => {
    all = !all;
    here((query) => (all ? query.set("intervals", "all") : query.delete("intervals")));
    show();
  });
  show();
}

// Numbers for one value or pair, and those for all at once, stand beside each other; one is shown.
function applyIntervals() {
  for (const part of document.querySelectorAll("[data-each]")) part.hidden = all;
  for (const part of document.querySelectorAll("[data-every]")) part.hidden = !all;
}

// The address follows what is shown, so that it can be passed on.
function here(change) {
  const address = new URL(location.href);
  change(address.searchParams);
  history.replaceState(null, "", address);
}

const compare = document.getElementById("compare");
if (compare) {
  const follow = () => {
    here((query) => { for (const [name, text] of new FormData(compare)) query.set(name, text); });
    refresh();
  };
  compare.addEventListener("change", follow);
  compare.addEventListener("submit", (event) => { event.preventDefault(); follow(); });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

// --- fresh numbers -----------------------------------------------------------------------------

let busy = false;
let stale = false;
let announced = 0;
let changed = 0; // when the server saw the newest change, by its own clock

// The server's own page again, and of it the parts that may have changed.
async function refresh() {
  if (document.hidden || busy) { stale = true; return; }
  busy = true;
  stale = false;
  let wait = 1000;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (answer.ok) replace(await answer.text());
    const made = await load();
    // Answers are shared for a moment: one from before the change does not show it yet.
    if (Math.min(made, Number(answer.headers.get("X-Made"))) < changed) stale = true;
  } catch { // cut off, or the server is away: there may be no other event for long
    stale = true;
    wait = AGAIN;
  }
  busy = false;
  if (stale) setTimeout(refresh, wait);
}

function replace(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  let changed = false;
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (!other || other.outerHTML === part.outerHTML) continue;
    const focus = part.contains(document.activeElement) ? place(part, document.activeElement) : null;
    const box = part.querySelector(".scroll");
    const left = box ? box.scrollLeft : 0;
    part.replaceWith(document.adoptNode(other));
    if (other.querySelector(".scroll")) other.querySelector(".scroll").scrollLeft = left;
    if (focus !== null) other.querySelectorAll("a, [tabindex], button")[focus]?.focus({ preventScroll: true });
    changed = changed || part.id !== "health";
  }
  if (changed) document.body.dataset.updated = String(Number(document.body.dataset.updated || 0) + 1);
}

const place = (part, element) => [...part.querySelectorAll("a, [tabindex], button")].indexOf(element);

function announce(facts) {
  if (Date.now() - announced < QUIET) return;
  announced = Date.now();
  const filling = (facts.filling || []).map((row) => {
    const reports = Object.values(row.reports).reduce((sum, n) => sum + n, 0);
    return `round ${row.round} holds ${reports} reports`;
  });
  const line = document.getElementById("announce");
  line.textContent = [facts.service, ...filling].join("; ");
}

// Only while somebody looks: a browser has few connections to one server, and all tabs share them.
let stream = null;

function listen() {
  if (stream !== null || document.hidden) return;
  const opened = stream = new EventSource(document.body.dataset.events);
  let first = true;
  stream.addEventListener("change", (event) => {
    if (!first) announce(JSON.parse(event.data));
    first = false;
    changed = Number(event.lastEventId);
    refresh();
  });
  stream.addEventListener("error", () => {
    if (opened.readyState !== EventSource.CLOSED || opened !== stream) return;
    stream = null;
    setTimeout(listen, AGAIN); // refused: look now and then instead
    refresh();
  });
}

if (document.body.dataset.events) {
  listen();
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) { listen(); refresh(); return; }
    if (stream !== null) stream.close();
    stream = null;
  });
}

// --- the value to show over time ---------------------------------------------------------------

const value = document.getElementById("value");
if (value) {
  value.addEventListener("change", () => {
    const measured = value.selectedOptions[0].parentElement.tagName === "OPTGROUP";
    chart.dataset.chosen = measured ? value.value : String(value.selectedIndex);
    here((query) => query.set("value", value.value));
    redraw();
    refresh();
  });
}

// --- the planner -------------------------------------------------------------------------------

const form = document.getElementById("planner");

function parameters() {
  return new URLSearchParams([...new FormData(form)].filter(([, text]) => text !== ""));
}

async function plan() {
  const query = parameters();
  source = "/planner.json?" + query;
  const answer = await fetch(source, { cache: "no-store" });
  const facts = await answer.json();
  const error = document.getElementById("planner-error");
  error.hidden = answer.ok;
  error.textContent = answer.ok ? "" : facts.error;
  if (!answer.ok) return;
  history.replaceState(null, "", "/planner?" + query);
  document.getElementById("as-json").href = source;
  document.getElementById("as-csv").href = "/planner.csv?" + query;
  drawn = facts;
  redraw();
  const page = await fetch(location.href, { cache: "no-store" });
  if (page.ok) replace(await page.text());
}

if (form) {
  let waiting = 0;
  const later = () => { clearTimeout(waiting); waiting = setTimeout(plan, 120); };
  for (const range of form.querySelectorAll("input[type=range]")) {
    const field = document.getElementById(range.dataset.for);
    const log = range.dataset.scale === "log";
    if (log) { // a step is the same factor everywhere
      range.min = Math.log10(Number(range.min));
      range.max = Math.min(7, Math.log10(Number(range.max)));
      range.step = 0.01;
    }
    const follow = () => { range.value = log ? Math.log10(Number(field.value)) : field.value; };
    follow();
    range.hidden = false;
    range.addEventListener("input", () => {
      field.value = log ? Number((10 ** Number(range.value)).toPrecision(2)).toFixed(0) : range.value;
      later();
    });
    field.addEventListener("input", () => { follow(); later(); });
  }
  form.addEventListener("change", later);
  form.addEventListener("submit", (event) => { event.preventDefault(); plan(); });
  plan();
} else {
  load();
}
