// What a campaign asks (section 3): from bytes to a checked manifest, or the reason why not.

import { createHash } from "node:crypto";
import { F64, decodeWithin, encode } from "./canonical.js";
import {
  LONGITUDINAL,
  answerBytes,
  chooseMemoized,
  chooseNested,
  chooseOnce,
  isBits,
  largestEps1,
} from "./noise.js";

const MAX_BYTES = 262144;
const MAX_INSTANT = 253402300799;
const MAX_VALUES = 4096;
const YEAR = 31622400;

export class Refused extends Error {}
const refuse = (field, why) => {
  throw new Refused(`${field}: ${why}`);
};

// --- kinds of fields: each checks a decoded value, and says how it is encoded ----------------------

const plainly = (value) => value;
const kind = (check, why, wire = plainly) => ({ check, why, wire });
const isFloat = (value) => typeof value === "number";
const whole = (low, high) =>
  kind((v) => Number.isSafeInteger(v) && low <= v && v <= high, `not from ${low} to ${high}`);
const float = (low, high) =>
  kind((v) => isFloat(v) && low <= v && v <= high, `not from ${low} to ${high}`, (v) => new F64(v));
const word = (pattern) => kind((v) => typeof v === "string" && pattern.test(v), "not such a name");
const oneOf = (...allowed) => kind((v) => allowed.includes(v), `not one of ${allowed.join(", ")}`);
const flag = kind((v) => typeof v === "boolean", "neither true nor false");
const floats = (low, high, check) =>
  kind(
    (v) => Array.isArray(v) && low <= v.length && v.length <= high && v.every(isFloat) && check(v),
    "not such a list of numbers",
    (v) => v.map((each) => new F64(each)),
  );
const rising = (list) => list.every((each, i) => i === 0 || list[i - 1] < each);

const FORBIDDEN = /[\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]|^ | $/u;
const INVISIBLE = new RegExp(
  "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u2800\u3164" +
    "\ue000-\uf8ff\ufdd0-\ufdef\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff" +
    "\u{13430}-\u{1345f}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{10ffff}]",
  "u",
);
const isText = (v, low, high) =>
  typeof v === "string" &&
  low <= [...v].length &&
  [...v].length <= high &&
  !FORBIDDEN.test(v) &&
  !INVISIBLE.test(v);

// --- the table of section 3 -----------------------------------------------------------------------

const EPSILON = float(1e-9, 20);
const INSTANT = whole(0, MAX_INSTANT);
const SLUG = /^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$/;
const NAME = /^[a-z][a-z0-9_-]{0,31}$/;
const EDGES = floats(3, MAX_VALUES + 1, (edges) => {
  const inner = edges.slice(1, -1).every(Number.isFinite);
  const ends = edges[0] !== Infinity && edges.at(-1) !== -Infinity;
  return rising(edges) && inner && ends && !edges.some((each) => Object.is(each, -0));
});
const END = kind(
  (v) => v === null || (Number.isFinite(v) && !Object.is(v, -0)),
  "neither a finite number nor nil",
  (v) => (v === null ? null : new F64(v)),
);
const KEY = kind((v) => v instanceof Uint8Array && [0, 32].includes(v.length), "not 32 bytes");

const text = (low, high) => kind((v) => isText(v, low, high), "not such a text");

function manifestFields(given) {
  return {
    format: oneOf(1),
    slug: word(SLUG),
    title: text(1, 100),
    purpose: text(1, 1000),
    owner: text(1, 100),
    contact: text(1, 200),
    created: INSTANT,
    expires: INSTANT,
    retention: whole(0, 100 * YEAR),
    reporting: oneOf("memoized", "once", "hashed", "nested"),
    eps_inf: EPSILON,
    eps_1: EPSILON,
    choose_for: oneOf("round", "pooled"),
    min_reports: whole(1, 1e12),
    max_values: whole(1, MAX_VALUES),
    devices: whole(0, 1e12),
    receipt_pages: whole(1, 65536),
    operator: KEY,
    rounds: table("rounds", ROUNDS),
    attributes: {
      check: (v) => Array.isArray(v) && 1 <= v.length && v.length <= 128,
      why: "not from 1 to 128 attributes",
      wire: (v) => v.map((each, i) => read(`attributes[${i}]`, attributeFields(each), each)),
    },
    ...("groups" in given ? { groups: table("groups", GROUPS) } : {}),
  };
}

const ROUNDS = {
  first: INSTANT,
  period: whole(1, YEAR),
  count: whole(1, 65536),
  grace: whole(0, YEAR),
  each: whole(0, 65536),
  drain: whole(1, 86400),
};

const GROUP = /^[A-Za-z0-9][A-Za-z0-9 ._-]{0,31}$/;
const isGroup = (v) => typeof v === "string" && GROUP.test(v) && v !== "others";
const GROUPS = {
  label: word(NAME),
  values: kind(
    (v) => Array.isArray(v) && 1 <= v.length && v.length <= 32 && new Set(v).size === v.length && v.every(isGroup),
    "not from 1 to 32 distinct values of a label",
  ),
};

const has = (given, name) => given !== null && typeof given === "object" && name in given;

function questionFields(given) {
  const distinct = (v) => new Set(v).size === v.length && v.every((s) => isText(s, 1, 100));
  const values = kind(
    (v) => Array.isArray(v) && 2 <= v.length && v.length <= MAX_VALUES && distinct(v),
    "not from 2 to 4096 distinct values",
  );
  return {
    name: word(NAME),
    question: text(1, 300),
    ...(has(given, "edges") ? { edges: EDGES, unit: text(0, 16), low: END, high: END } : { values }),
    changes: flag,
  };
}

function attributeFields(given) {
  return {
    ...(has(given, "cross") ? { cross: CROSS } : questionFields(given)),
    protocol: oneOf("auto", ...LONGITUDINAL, "GRR", "OUE", "SS"),
    calibration: oneOf("exact", "paper"),
    ...(has(given, "levels") ? { levels: floats(2, 32, levelsAreSound) } : {}),
  };
}

/** Both questions of a pair (M123): each as it would be alone, without noise of its own. */
const CROSS = {
  check: (v) => Array.isArray(v) && v.length === 2,
  why: "not two questions",
  wire: (v) => v.map((each, i) => read(`cross[${i}]`, questionFields(each), each)),
};

const levelsAreSound = (levels) => rising(levels) && levels.every((e) => 1e-9 <= e && e <= 20);

function table(path, fields) {
  return { check: () => true, why: "", wire: (v) => read(path, fields, v) };
}

/** Check every field, and give the map as it is encoded: exactly these, in this order. */
function read(path, fields, given) {
  const shown = (name) => (path === "" ? name : `${path}.${name}`);
  if (given === null || typeof given !== "object" || given instanceof Uint8Array) {
    refuse(path, "not a map");
  }
  for (const name of Object.keys(given)) {
    if (!(name in fields)) refuse(shown(name), "not a field");
  }
  const wire = new Map();
  for (const [name, field] of Object.entries(fields)) {
    if (!Object.hasOwn(given, name)) refuse(shown(name), "is missing");
    if (!field.check(given[name])) refuse(shown(name), field.why);
    wire.set(name, field.wire(given[name]));
  }
  return wire;
}

// --- what fields must be beside each other --------------------------------------------------------

function checkTogether(m) {
  const { rounds } = m;
  const end = rounds.first + rounds.count * rounds.period + rounds.grace;
  if (end > MAX_INSTANT) refuse("rounds.count", "the last round is after year 9999");
  if (m.created > rounds.first) refuse("created", "after rounds.first");
  if (m.expires < end) refuse("expires", "before the last deadline");
  const names = m.attributes.flatMap(({ name, cross = [] }) => [name, ...cross.map((p) => p.name)]);
  if (new Set(names).size < names.length) refuse("attributes", "a name is taken");
  if (m.max_values > Math.max(...m.attributes.map((a) => a.k))) refuse("max_values", "too many");
  checkWay(m);
  m.attributes.forEach((attribute, i) => checkAttribute(m, attribute, `attributes[${i}]`));
}

function checkWay(m) {
  const once = m.reporting === "once";
  if (m.reporting !== "memoized" && m.max_values !== 1) refuse("max_values", "must be 1");
  const chooses = m.reporting === "memoized" && m.attributes.some((a) => a.protocol === "auto");
  if (m.choose_for !== "round" && !chooses) refuse("choose_for", "nothing is chosen");
  const each = m.rounds.each;
  if (once ? each < 1 || each > m.rounds.count : each !== 0) refuse("rounds.each", "does not fit");
  if (once ? m.eps_1 !== m.eps_inf / each : m.eps_1 >= m.eps_inf) refuse("eps_1", "does not fit");
}

const NAMED = {
  memoized: LONGITUDINAL,
  once: ["GRR", "OUE", "SS"],
  hashed: [],
  nested: ["GRR", "OUE", "SS"],
};

function checkAttribute(m, attribute, path) {
  if (attribute.k > MAX_VALUES) refuse(`${path}.edges`, "one value too many (M60)");
  if (!["auto", ...NAMED[m.reporting]].includes(attribute.protocol)) {
    refuse(`${path}.protocol`, `not with ${m.reporting}`);
  }
  if (m.reporting !== "memoized" && attribute.calibration !== "exact") {
    refuse(`${path}.calibration`, "must be exact");
  }
  if ((m.reporting === "nested") !== (attribute.levels !== undefined)) {
    refuse(`${path}.levels`, "only and always with nested");
  }
  const levels = attribute.levels;
  if (levels && (levels[0] !== m.eps_1 || levels.at(-1) !== m.eps_inf)) {
    refuse(`${path}.levels`, "must begin with eps_1 and end with eps_inf");
  }
  checkEnds(attribute, path);
  const largest = largestEps1(attribute.protocol, m.eps_inf);
  if (largest !== undefined && m.eps_1 > largest) {
    refuse(`${path}.protocol`, `eps_1 can be at most ${largest}`);
  }
}

function checkEnds({ edges, low, high, cross, name }, path) {
  if (cross) {
    if (!NAME.test(name)) refuse(`${path}.cross`, "names too long");
    cross.forEach((part, i) => checkEnds(part, `${path}.cross[${i}]`));
    return;
  }
  if (low != null && !(edges[0] === -Infinity && low < edges[1])) refuse(`${path}.low`, "misplaced");
  if (high != null && !(edges.at(-1) === Infinity && high > edges.at(-2))) {
    refuse(`${path}.high`, "misplaced");
  }
}

// --- a manifest -----------------------------------------------------------------------------------

/** A checked manifest with what follows from it, or `Refused`. */
export function readManifest(bytes) {
  if (bytes.length > MAX_BYTES) refuse("manifest", "too long");
  const limits = { array: MAX_VALUES + 1, text: 4096, binary: 32, maps: 32 };
  const given = decodeWithin(bytes, limits);
  if (given === undefined || given === null || typeof given !== "object" || Array.isArray(given)) {
    refuse("manifest", "not a msgpack map");
  }
  if (given.format !== 1) refuse("format", `${given.format} is not known here`);
  const wire = read("", manifestFields(given), given);
  if (!encode(wire).equals(Buffer.from(bytes))) refuse("manifest", "not the canonical encoding");
  return completed(given, bytes);
}

function completed(given, bytes) {
  const m = { ...given, attributes: given.attributes.map(withDomain) };
  checkTogether(m);
  m.digest = createHash("sha256").update(bytes).digest();
  m.digest8 = m.digest.subarray(0, 8);
  m.campaign = `${m.slug}-${m.digest.toString("hex").slice(0, 8)}`;
  for (const attribute of m.attributes) {
    attribute.runs = protocolOf(m, attribute);
    attribute.bits = m.reporting === "hashed" ? false : isBits(attribute.runs);
    attribute.answerBytes = lengthOf(m, attribute);
  }
  m.bodyBytes = Math.max(...m.attributes.map((attribute) => attribute.answerBytes)); // M68
  return m;
}

/** k, and the place of everything else where there is one (M60). */
function withDomain(attribute) {
  const { edges, values } = attribute;
  if (attribute.cross) {
    const cross = attribute.cross.map(withDomain);
    const name = cross.map((part) => part.name).join("-");
    const question = cross.map((part) => part.question).join(" ");
    return { ...attribute, cross, name, question, k: cross[0].k * cross[1].k };
  }
  const endless = edges !== undefined && edges[0] === -Infinity && edges.at(-1) === Infinity;
  const bins = edges === undefined ? 0 : edges.length - 1;
  const k = edges === undefined ? values.length : bins + (endless ? 0 : 1);
  return { ...attribute, k, endless, otherwise: endless ? null : k - 1 };
}

function protocolOf(m, { protocol, k, calibration, levels }) {
  if (m.reporting === "hashed") return "LOLOHA";
  if (protocol !== "auto") return protocol;
  if (m.reporting === "once") return chooseOnce(k, m.eps_1);
  if (m.reporting === "nested") return chooseNested(k, levels);
  const rounds = m.choose_for === "pooled" ? m.rounds.count : undefined;
  return chooseMemoized(k, m.eps_inf, m.eps_1, calibration, rounds);
}

function lengthOf(m, attribute) {
  if (m.reporting === "hashed") return 1;
  return answerBytes(attribute.bits, attribute.k) + (m.reporting === "nested" ? 1 : 0);
}

// --- a value's place ------------------------------------------------------------------------------

const NUMBER = /^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i;

function asNumber(value) {
  if (typeof value === "number") return value;
  return typeof value === "string" && NUMBER.test(value) ? Number(value) : NaN;
}

/** The index of a pair from those of its values (M124); of other questions, the index itself. */
export const joined = ({ cross }, [first, second]) =>
  cross ? first * cross[1].k + second : first;

/** The index of a value (M9, M60), or null for what is no number, with bins from -inf to inf. */
export function placeOf(attribute, value) {
  if (attribute.cross) return joined(attribute, attribute.cross.map((p, i) => placeOf(p, value[i])));
  const { edges, values, otherwise } = attribute;
  if (edges === undefined) {
    const found = ["string", "number", "boolean"].includes(typeof value)
      ? values.indexOf(String(value))
      : -1;
    return found >= 0 ? found : otherwise;
  }
  const number = asNumber(value);
  const last = edges.length - 2;
  if (Number.isNaN(number) || number < edges[0] || number > edges.at(-1)) return otherwise;
  return number === edges.at(-1) ? last : edges.findIndex((edge) => number < edge) - 1;
}
