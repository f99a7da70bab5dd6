// Keeps the page as fresh as the data. Without it the page is whole, but does not update itself.
"use strict";

const QUIET = 10000; // a screen reader hears of changes at most this often
const AGAIN = 10000;
const FOCUSABLE = "a, [tabindex], button, select, input";

document.documentElement.classList.add("scripted");

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
    replace(await answer.text(), answer.ok);
    // Answers are shared for a moment: one from before the change does not show it yet.
    if (Number(answer.headers.get("X-Made")) < changed) stale = true;
  } catch { // cut off, or the server is away: there may be no other event for long
    stale = true;
    wait = AGAIN;
  }
  busy = false;
  if (stale) setTimeout(refresh, wait);
}

function replace(text, ok) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const error = document.getElementById("error");
  if (error) {
    error.hidden = ok;
    error.textContent = ok ? "" : fresh.getElementById("sentence").textContent;
  }
  if (!ok) return;
  let updated = false;
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = fresh.getElementById(part.id);
    if (!other) continue;
    for (const each of part.querySelectorAll("details[open]")) other.querySelector(`#${each.id}`)?.setAttribute("open", "");
    if (other.outerHTML === part.outerHTML) continue;
    const focus = part.contains(document.activeElement) ? place(part, document.activeElement) : null;
    const box = part.querySelector(".scroll");
    const left = box ? box.scrollLeft : 0;
    part.replaceWith(document.adoptNode(other));
    if (other.querySelector(".scroll")) other.querySelector(".scroll").scrollLeft = left;
    if (focus !== null) other.querySelectorAll(FOCUSABLE)[focus]?.focus({ preventScroll: true });
    updated = updated || part.id !== "health";
  }
  if (updated) document.body.dataset.updated = String(Number(document.body.dataset.updated || 0) + 1);
}

const place = (part, element) => [...part.querySelectorAll(FOCUSABLE)].indexOf(element);

function announce(facts) {
  if (Date.now() - announced < QUIET) return;
  announced = Date.now();
  const filling = (facts.filling || []).map((row) => {
    const reports = Object.values(row.reports).reduce((sum, n) => sum + n, 0);
    return `round ${row.round} holds ${reports} reports`;
  });
  document.getElementById("announce").textContent = [facts.service, ...filling].join("; ");
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

// --- forms: the address follows what is chosen, so that it can be passed on ----------------------

function follow(form, submitter) {
  const address = new URL(location.href);
  for (const [name, text] of new FormData(form, submitter)) {
    if (form.elements[name].type === "hidden") continue; // what another form has chosen stays
    if (text === "") address.searchParams.delete(name); else address.searchParams.set(name, text);
  }
  history.replaceState(null, "", address);
  refresh();
}

let waiting = 0;
const followed = (event) => event.target.closest("form[data-follow]");

function later(form) {
  clearTimeout(waiting);
  waiting = setTimeout(follow, 120, form);
}

document.addEventListener("submit", (event) => {
  if (!followed(event)) return;
  event.preventDefault();
  follow(followed(event), event.submitter);
});
document.addEventListener("change", (event) => { if (followed(event)) later(followed(event)); });

// --- the planner's sliders -----------------------------------------------------------------------

for (const range of document.querySelectorAll("input[type=range][data-for]")) {
  const field = document.getElementById(range.dataset.for);
  const log = range.dataset.scale === "log";
  if (log) { // a step is the same factor everywhere
    range.min = Math.log10(Number(range.min));
    range.max = Math.min(7, Math.log10(Number(range.max)));
    range.step = 0.01;
  }
  const adjust = () => { range.value = log ? Math.log10(Number(field.value)) : field.value; };
  adjust();
  range.hidden = false;
  range.addEventListener("input", () => {
    field.value = log ? Number((10 ** Number(range.value)).toPrecision(2)).toFixed(0) : range.value;
    later(range.form);
  });
  field.addEventListener("input", () => { adjust(); later(field.form); });
}
