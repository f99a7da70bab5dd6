// How much noise (section 8), and drawing it (section 9).

import { createHash, randomBytes } from "node:crypto";
import * as fixed from "./precise.js";
import { HALF, ONE, div, exactly, exp, from, ln, mul, nearest, power, sqrt } from "./precise.js";

export const LONGITUDINAL = ["L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "L-SS"];
const SETS = ["L-GRR", "L-SS", "GRR", "SS"];
/** Whether an answer is written as k bits, not as an index. */
export const isBits = (protocol) => !protocol.includes("GRR");

// --- chances ------------------------------------------------------------------------------------

const first = {
  GRR: (epsilon, k) => ofKept(keptFor(epsilon, k, 1), k, 1, 1),
  SS: (epsilon, k, size) => ofKept(keptFor(epsilon, k, size), k, 1, size),
  OUE: (epsilon) => [HALF, div(ONE, exp(epsilon) + ONE)],
  SUE(epsilon) {
    const q = div(ONE, exp(epsilon / 2n) + ONE);
    return [ONE - q, q];
  },
};
const steps = {
  GRR: ["GRR"],
  OUE: ["OUE"],
  SUE: ["SUE"],
  SS: ["SS"],
  "L-GRR": ["GRR", "SS"],
  "L-SS": ["GRR", "SS"],
  "L-OUE": ["OUE", "OUE"],
  "L-SUE": ["SUE", "SUE"],
  "L-OSUE": ["OUE", "SUE"],
  "L-SOUE": ["SUE", "OUE"],
};

// Sets (M150, M151): "s" of an epsilon, and p and q of a step that keeps sets of `before` values.
const gain = (epsilon, size) => BigInt(size) * (exp(epsilon) - ONE);
const keptFor = (epsilon, k, size) => div(gain(epsilon, size), gain(epsilon, size) + from(k));
function ofKept(keep, k, before, size) {
  const blind = ((ONE - keep) * BigInt(size)) / BigInt(k);
  return [keep + blind, (keep * BigInt(size - before)) / BigInt(k - before) + blind];
}
const keptOf = ([p, q], k, before, size) => ((p - q) * BigInt(k - before)) / BigInt(k - size);

/** M150; drawn from sets of `before` values at the epsilon `above`, or from the value. */
export function bestSize(k, epsilon, before = 1, above = undefined) {
  const e = exp(exactly(epsilon)) - ONE;
  const below = Number(div(from(k), e + 2n * ONE) / ONE);
  const noise = (d) => {
    const sum = BigInt(d) * e + from(k);
    return div(mul(sum, sum), from(d * (k - d)));
  };
  const sizes = [below, below + 1].filter((d) => d >= 1 && d < k);
  let best = sizes.length > 1 && noise(sizes[1]) < noise(sizes[0]) ? sizes[1] : sizes[0];
  if (above !== undefined) {
    const most = div(gain(exactly(above), before), e) / ONE;
    if (most < BigInt(best)) best = Number(most);
  }
  return Math.max(before, best);
}

/** Values that a report supports; 0 where bits are drawn one by one. */
export function sizeOf(protocol, k, epsInf, eps1) {
  if (protocol === "SS") return bestSize(k, epsInf);
  if (protocol === "L-SS") return bestSize(k, eps1, 1, epsInf);
  return SETS.includes(protocol) ? 1 : 0;
}

/** p1, q1, p2, q2 of a protocol; epsilons are fixed-point. Without RR2, p2 is 1 and q2 is 0. */
export function chances(protocol, k, epsInf, eps1, method = "exact", size = 1) {
  const [one, two] = steps[protocol];
  const rr1 = first[one](epsInf, k, size);
  if (two === undefined) return [...rr1, ONE, 0n];
  if (two === "OUE") return [...rr1, HALF, secondHalf(protocol, epsInf, eps1)];
  const isPaper = protocol === "L-GRR" && method === "paper";
  if (two === "SS" && !isPaper) {
    const keep = div(keptFor(eps1, k, size), keptFor(epsInf, k, 1));
    return [...rr1, ...ofKept(keep, k, 1, size)];
  }
  const scale = protocol === "L-SUE" ? 2n : 1n;
  const [a, c] = [exp(epsInf / scale), exp(eps1 / scale)];
  const b = ONE + div(mul(c - ONE, a + ONE), a - c);
  const rest = isPaper ? k - 1 : 1;
  const q2 = div(ONE, b + from(rest));
  return [...rr1, ONE - BigInt(rest) * q2, q2];
}

/** q2 where p2 is 1/2, in the form that does not cancel. */
function secondHalf(protocol, epsInf, eps1) {
  const c = exp(eps1);
  let u, v, w;
  if (protocol === "L-OUE") {
    const a = exp(epsInf);
    [u, v, w] = [mul(a, c - ONE), a + ONE - mul(c, 3n * a - ONE), 2n * a + ONE - 3n * c];
  } else {
    const A = exp(epsInf / 2n);
    const square = mul(A, A);
    u = mul(A, c - ONE);
    v = 2n * A + ONE - square - mul(c, square + 2n * A - ONE);
    w = mul(A, 2n * A + ONE) - mul(c, A + 2n * ONE);
  }
  if (w < 0n) w = 0n;
  return div(w, sqrt(mul(v, v) - 4n * mul(u, w)) - v);
}

/** The last column of the table, as a float64; undefined where there is no limit. */
export function largestEps1(protocol, epsInf) {
  const e = exactly(epsInf);
  if (protocol === "L-OUE") return nearest(ln((2n * exp(e) + ONE) / 3n));
  if (protocol !== "L-SOUE") return undefined;
  const A = exp(e / 2n);
  return nearest(ln(div(mul(A, 2n * A + ONE), A + 2n * ONE)));
}

export function support([p1, q1, p2, q2]) {
  return [mul(p1, p2) + mul(ONE - p1, q2), mul(q1, p2) + mul(ONE - q1, q2)];
}

/** Variance of a frequency f (fixed-point) estimated from one report. */
export function variance(four, f = 0n) {
  const [ps, qs] = support(four);
  const gamma = mul(f, ps) + mul(ONE - f, qs);
  return div(mul(gamma, ONE - gamma), mul(ps - qs, ps - qs));
}

/** Of a value that a memo supports with the chance `kept`. */
function pooledNoise([p1, q1, p2, q2], kept, rounds) {
  const between = div(mul(kept, ONE - kept), mul(p1 - q1, p1 - q1));
  const within = mul(kept, mul(p2, ONE - p2)) + mul(ONE - kept, mul(q2, ONE - q2));
  const gap = mul(p1 - q1, p2 - q2);
  return between + div(within, mul(gap, gap)) / BigInt(rounds);
}

/** Exact loss of so many reports of one memo; with q2/p2 in place of p2/q2, because q2 may be 0. */
export function lossAfter(size, k, [p1, q1, p2, q2], reports) {
  if (size) return lossOfSets(size, k, [p1, q1, p2], reports);
  const fade = power(div(q2, p2), reports);
  const absent = power(div(ONE - p2, ONE - q2), reports);
  const ones = div(p1 + mul(ONE - p1, fade), q1 + mul(ONE - q1, fade));
  const zeros = div(mul(q1, absent) + ONE - q1, mul(p1, absent) + ONE - p1);
  return ln(mul(ones, zeros));
}

function lossOfSets(d, k, [p1, q1, p2], t) {
  const [a, fade] = [div(p1, q1), div((ONE - p2) * BigInt(d), p2 * BigInt(k - d))];
  let largest = 0n;
  for (let w = 0; w < t && w <= t * (d - 1); w += 1) {
    const rest = t * (d - 1) - w;
    const each = k > 2 ? Math.floor(rest / (k - 2)) : 0;
    const more = k > 2 ? rest % (k - 2) : 0;
    let others = BigInt(k - 2 - more) * power(fade, t - each);
    if (more) others += BigInt(more) * power(fade, t - each - 1);
    const again = power(fade, t - w);
    const ratio = div(a + again + others, ONE + mul(a, again) + others);
    if (ratio > largest) largest = ratio;
  }
  return ln(largest);
}

// --- what auto is ---------------------------------------------------------------------------------

/** M27 and M75: sets unless L-OSUE is better, compared in full precision. */
export function chooseMemoized(k, epsInf, eps1, method, rounds = 1) {
  const size = sizeOf("L-SS", k, epsInf, eps1);
  const four = (protocol) => chances(protocol, k, exactly(epsInf), exactly(eps1), method, size);
  if (method === "paper") {
    return variance(four("L-GRR")) <= variance(four("L-OSUE")) ? "L-GRR" : "L-OSUE";
  }
  const total = ([p1, q1, p2, q2]) =>
    pooledNoise([p1, q1, p2, q2], p1, rounds) +
    BigInt(k - 1) * pooledNoise([p1, q1, p2, q2], q1, rounds);
  if (total(four("L-SS")) > total(four("L-OSUE"))) return "L-OSUE";
  return size > 1 ? "L-SS" : "L-GRR";
}

/** M76 */
export const chooseOnce = (k, epsilon) => (bestSize(k, epsilon) > 1 ? "SS" : "GRR");
export const chooseNested = (k, levels) => (nestedSizes("SS", k, levels)[0] > 1 ? "SS" : "GRR");

// --- thresholds -----------------------------------------------------------------------------------

const SHIFT = 400n - 64n;
const down = (p) => p >> SHIFT;
const up = (q) => -(-q >> SHIFT);
const lower = (epsilon) => exactly(fixed.below(epsilon));

/** RR1 and RR2 (M28, M151): p and q in units of 2^-64; of sets keep, and the size. */
export function thresholds(protocol, k, epsInf, eps1, method) {
  const size = sizeOf(protocol, k, epsInf, eps1);
  const four = chances(protocol, k, lower(epsInf), lower(eps1), method, size);
  const [rr1, rr2] = [four.slice(0, 2), four.slice(2)];
  if (!size) return [rr1, rr2].map(([p, q]) => [down(p), up(q)]);
  return [
    [down(keptOf(rr1, k, 1, 1)), 1],
    [down(keptOf(rr2, k, 1, size)), size],
  ];
}

export function onceThresholds(protocol, k, epsilon) {
  const size = sizeOf(protocol, k, epsilon);
  const [p, q] = chances(protocol, k, lower(epsilon), 0n, "exact", size);
  return size ? [down(keptOf([p, q], k, 1, size)), size] : [down(p), up(q)];
}

/** Of each level, level 1 first; 0 for bits. */
export function nestedSizes(protocol, k, levels) {
  if (protocol !== "SS") return levels.map(() => (protocol === "GRR" ? 1 : 0));
  const sizes = [bestSize(k, levels.at(-1))];
  for (let i = levels.length - 2; i >= 0; i -= 1) {
    sizes.unshift(bestSize(k, levels[i], sizes[0], levels[i + 1]));
  }
  return sizes;
}

/** Of the step to each level from the one above it, level 1 first; the last one from the value. */
export function nestedThresholds(protocol, k, levels) {
  const sizes = nestedSizes(protocol, k, levels);
  const kept = levels.map((level, i) => keptFor(lower(level), k, sizes[i]));
  const inner = levels.slice(0, -1).map((level, i) => {
    if (sizes[i]) return [down(div(kept[i], kept[i + 1])), sizes[i]];
    return thresholds("L-OSUE", k, levels[i + 1], level, "exact")[1];
  });
  const last = sizes.at(-1) ? [down(kept.at(-1)), sizes.at(-1)] : undefined;
  return [...inner, last ?? onceThresholds(protocol, k, levels.at(-1))];
}

// --- drawing --------------------------------------------------------------------------------------

/** Random bytes come from the operating system (M29); only vectors pass others. */
export const systemEntropy = (size) => randomBytes(size);

/** Uniform below a bound, by rejection: no modulo bias (M33). */
export function uniform(bound, entropy) {
  const bits = (bound - 1).toString(2).length * (bound > 1 ? 1 : 0);
  const size = Math.ceil(bits / 8);
  for (;;) {
    const drawn = size === 0 ? 0 : entropy(size).readUIntBE(0, size) >>> (8 * size - bits);
    if (drawn < bound) return drawn;
  }
}

export const answerBytes = (bits, k) => (bits ? Math.ceil(k / 8) : k <= 256 ? 1 : 2);

/** The answer that supports these values; of one value it is not private. */
export function plainAnswer(bits, k, ...values) {
  const body = Buffer.alloc(answerBytes(bits, k));
  if (!bits) body.writeUIntBE(values[0], 0, body.length);
  else for (const value of values) body[value >> 3] |= 0x80 >> (value & 7);
  return body;
}

function supported(bits, k, body) {
  if (!bits) return [body.readUIntBE(0, body.length)];
  return [...Array(k).keys()].filter((i) => body[i >> 3] & (0x80 >> (i & 7)));
}

/** One randomised response (M31 to M33): of sets a step is keep and the size, which is no BigInt. */
export function respond(bits, k, body, [keep, second], entropy) {
  const held = new Set(supported(bits, k, body));
  if (typeof second === "bigint") {
    const draws = entropy(8 * k);
    const isOne = (i) => draws.readBigUInt64BE(8 * i) < (held.has(i) ? keep : second);
    return plainAnswer(bits, k, ...[...Array(k).keys()].filter(isOne));
  }
  const chosen = entropy(8).readBigUInt64BE() < keep ? held : new Set();
  while (chosen.size < second) chosen.add(uniform(k, entropy));
  return plainAnswer(bits, k, ...chosen);
}

/** M77: bit i is the cell of value i. */
export function code(digest, device, k) {
  const length = Math.ceil(k / 8);
  const found = createHash("shake128", { outputLength: length })
    .update(digest)
    .update(device, "ascii")
    .digest();
  found[length - 1] &= 0xff << (8 * length - k);
  return found;
}

/** M80: `each` of the rounds from `first` on, every set with the same chance. */
export function drawRounds(firstRound, count, each, entropy) {
  const left = Math.max(count - firstRound, 0);
  const drawn = new Set();
  for (let m = Math.max(left - each, 0); m < left; m += 1) {
    const j = uniform(m + 1, entropy);
    drawn.add(drawn.has(j) ? m : j);
  }
  return [...drawn].map((number) => firstRound + number).sort((a, b) => a - b);
}
