// Thresholds that a collector publishes (section 6), for devices that cannot calculate with 80 digits.
// This one can, and does not use them; the check is here because it is all that another device needs.
// Nothing but float64 is in it.

import { decodeMessage } from "./messages.js";

const PROTOCOLS = [
  ...["L-GRR", "L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "GRR", "OUE", "LOLOHA", "L-SS", "SS"],
];
const UNARY = new Set(["L-OUE", "L-SUE", "L-OSUE", "L-SOUE", "OUE"]);
const AUTO = {
  memoized: ["L-GRR", "L-SS", "L-OSUE"],
  once: ["GRR", "SS"],
  nested: ["GRR", "SS"],
  hashed: ["LOLOHA"],
};
const ALL = 2n ** 64n;
const SCALE = 2 ** 64;

/** [protocol, [[p, q], ...]] of each attribute, or null where a device must not draw with them (M115). */
export function usableThresholds(manifest, payload) {
  const message = decodeMessage("thresholds", payload);
  if (message.outcome || !manifest.digest8.equals(Buffer.from(message.digest8))) return null;
  if (message.protocols.length !== manifest.attributes.length) return null;
  const joined = Buffer.from(message.steps);
  let at = 0;
  const found = [];
  for (const [i, attribute] of manifest.attributes.entries()) {
    const epsilons = epsilonsOf(manifest, attribute);
    const protocol = PROTOCOLS[message.protocols[i]];
    const allowed = attribute.protocol === "auto" ? AUTO[manifest.reporting] : [attribute.protocol];
    if (!allowed.includes(protocol) || at + 16 * epsilons.length > joined.length) return null;
    const steps = epsilons.map((_, n) => [
      joined.readBigUInt64BE(at + 16 * n),
      joined.readBigUInt64BE(at + 16 * n + 8),
    ]);
    at += 16 * epsilons.length;
    const k = protocol === "LOLOHA" ? 2 : attribute.k;
    if (!isWithin(protocol, k, steps, epsilons)) return null;
    found.push([protocol, steps]);
  }
  return at === joined.length ? found : null;
}

function epsilonsOf(manifest, attribute) {
  if (manifest.reporting === "nested") return attribute.levels;
  return manifest.reporting === "once" ? [manifest.eps_1] : [manifest.eps_inf, manifest.eps_1];
}

function isWithin(protocol, k, steps, epsilons) {
  const drawn = steps.map((step, i) => [step, epsilons[i]]);
  if (epsilons[0] < epsilons.at(-1)) drawn.reverse(); // nested: the last level is drawn first
  const unary = UNARY.has(protocol);
  if (!unary && !areSizes(protocol, k, drawn.map(([step]) => step[1]))) return false;
  const told = (unary ? unaryTold : setTold)(k);
  return drawn.every(([[p, q], epsilon]) => {
    const chances = [p, ALL - p, q, ALL - q].map((each) => Number(each) / SCALE); // M116
    const loss = unary ? told(...chances) : told(chances[0], chances[1], Number(q));
    return loss <= epsilon - epsilon * 2 ** -40 - 2 ** -43;
  });
}

const logRatio = (a, b) => (a > 0 && b > 0 ? Math.abs(Math.log(a / b)) : Infinity);

function unaryTold() {
  let [s, r, t, u] = [1, 0, 0, 1];
  return (p, notP, q, notQ) => {
    [s, r, t, u] = [s * p + r * q, s * notP + r * notQ, t * p + u * q, t * notP + u * notQ];
    return logRatio(s, t) + logRatio(u, r);
  };
}

function setTold(k) {
  let [s, u] = [1, 0];
  return (keep, notKept, d) => {
    [s, u] = [s * keep, u + s * notKept];
    return logRatio(s * k + u * d, u * d);
  };
}

function areSizes(protocol, k, sizes) {
  if (!["L-SS", "SS"].includes(protocol)) return sizes.every((size) => size === 1n);
  if (protocol === "L-SS" && sizes[0] !== 1n) return false;
  return sizes.every((d, i) => d >= (i ? sizes[i - 1] : 1n) && d < BigInt(k));
}
