// How much noise (section 8), and drawing it (section 9).

import { createHash, randomBytes } from "node:crypto";
import * as fixed from "./precise.js";
import { HALF, ONE, div, exactly, exp, from, ln, mul, nearest, power, sqrt } from "./precise.js";

export const LONGITUDINAL = ["L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE"];
export const isUnary = (protocol) => !protocol.includes("GRR");

// --- chances ------------------------------------------------------------------------------------

const first = {
  GRR(epsilon, k) {
    const q = div(ONE, exp(epsilon) + from(k - 1));
    return [ONE - BigInt(k - 1) * q, q];
  },
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
  "L-GRR": ["GRR", "GRR"],
  "L-OUE": ["OUE", "OUE"],
  "L-SUE": ["SUE", "SUE"],
  "L-OSUE": ["OUE", "SUE"],
  "L-SOUE": ["SUE", "OUE"],
};

/** p1, q1, p2, q2 of a protocol; epsilons are fixed-point. Without RR2, p2 is 1 and q2 is 0. */
export function chances(protocol, k, epsInf, eps1, method = "exact") {
  const [one, two] = steps[protocol];
  const rr1 = first[one](epsInf, k);
  if (two === undefined) return [...rr1, ONE, 0n];
  if (two === "OUE") return [...rr1, HALF, secondHalf(protocol, epsInf, eps1)];
  const scale = protocol === "L-SUE" ? 2n : 1n;
  const [a, c] = [exp(epsInf / scale), exp(eps1 / scale)];
  const others = two === "GRR" && method === "exact" ? k - 1 : 1;
  const b = ONE + div(mul(c - ONE, a + from(others)), a - c);
  const rest = two === "GRR" ? k - 1 : 1;
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

function pooledNoise([p1, q1, p2, q2], rounds) {
  const between = div(mul(q1, ONE - q1), mul(p1 - q1, p1 - q1));
  const within = mul(q1, mul(p2, ONE - p2)) + mul(ONE - q1, mul(q2, ONE - q2));
  const gap = mul(p1 - q1, p2 - q2);
  return between + div(within, mul(gap, gap)) / BigInt(rounds);
}

/** Exact loss of so many reports of one memo; with q2/p2 in place of p2/q2, because q2 may be 0. */
export function lossAfter(protocol, k, [p1, q1, p2, q2], reports) {
  const fade = power(div(q2, p2), reports);
  if (!isUnary(protocol)) {
    const a = div(p1, q1);
    return ln(div(a + mul(from(k - 1), fade), mul(a + from(k - 2), fade) + ONE));
  }
  const absent = power(div(ONE - p2, ONE - q2), reports);
  const ones = div(p1 + mul(ONE - p1, fade), q1 + mul(ONE - q1, fade));
  const zeros = div(mul(q1, absent) + ONE - q1, mul(p1, absent) + ONE - p1);
  return ln(mul(ones, zeros));
}

// --- what auto is ---------------------------------------------------------------------------------

/** M27 and M75: L-GRR unless L-OSUE is better, compared in full precision. */
export function chooseMemoized(k, epsInf, eps1, method, rounds) {
  const noise = (protocol) => {
    const four = chances(protocol, k, exactly(epsInf), exactly(eps1), method);
    return rounds === undefined ? variance(four) : pooledNoise(four, rounds);
  };
  return noise("L-GRR") <= noise("L-OSUE") ? "L-GRR" : "L-OSUE";
}

/** M76 */
export function chooseOnce(k, epsilon) {
  const noise = (protocol) => variance(chances(protocol, k, exactly(epsilon)));
  return noise("GRR") <= noise("OUE") ? "GRR" : "OUE";
}

// --- thresholds -----------------------------------------------------------------------------------

const SHIFT = 400n - 64n;
const down = (p) => p >> SHIFT;
const up = (q) => -(-q >> SHIFT);
const lower = (epsilon) => exactly(fixed.below(epsilon));

/** [[p1, q1], [p2, q2]] in units of 2^-64 (M28). */
export function thresholds(protocol, k, epsInf, eps1, method) {
  const [p1, q1, p2, q2] = chances(protocol, k, lower(epsInf), lower(eps1), method);
  return [
    [down(p1), up(q1)],
    [down(p2), up(q2)],
  ];
}

export function onceThresholds(protocol, k, epsilon) {
  const [p, q] = chances(protocol, k, lower(epsilon));
  return [down(p), up(q)];
}

/** Of the step to each level from the one above it, level 1 first; the last one from the value. */
export function nestedThresholds(protocol, k, levels) {
  const step = protocol === "GRR" ? "L-GRR" : "L-OSUE";
  const inner = levels
    .slice(0, -1)
    .map((level, i) => thresholds(step, k, levels[i + 1], level, "exact")[1]);
  return [...inner, onceThresholds(protocol, k, levels.at(-1))];
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

export const answerBytes = (unary, k) => (unary ? Math.ceil(k / 8) : k <= 256 ? 1 : 2);

/** The answer that supports one value, before any noise. */
export function plainAnswer(unary, k, index) {
  const body = Buffer.alloc(answerBytes(unary, k));
  if (unary) body[index >> 3] |= 0x80 >> (index & 7);
  else body.writeUIntBE(index, 0, body.length);
  return body;
}

/** One randomised response (M31 to M33). */
export function respond(unary, k, body, [keep, add], entropy) {
  const found = Buffer.alloc(body.length);
  if (unary) {
    const draws = entropy(8 * k);
    for (let i = 0; i < k; i += 1) {
      const held = body[i >> 3] & (0x80 >> (i & 7));
      if (draws.readBigUInt64BE(8 * i) < (held ? keep : add)) found[i >> 3] |= 0x80 >> (i & 7);
    }
    return found;
  }
  const index = body.readUIntBE(0, body.length);
  let said = index;
  if (entropy(8).readBigUInt64BE() >= keep) {
    const other = uniform(k - 1, entropy);
    said = other < index ? other : other + 1;
  }
  found.writeUIntBE(said, 0, found.length);
  return found;
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
