#!/usr/bin/env node
// Checks this implementation against the vectors of the specification (section 13), as far as a
// device needs them (M56):  node vectors.js ../../protocol_spec/vectors
// Prints one JSON object: how many entries of each list were checked, and every difference.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { AddressError, parseAddress } from "./lib/address.js";
import { placeOf, readManifest, Refused } from "./lib/manifest.js";
import { decodeMessage, encodeMessage, pageOf, reportOf, tagOf, topicsOf } from "./lib/messages.js";
import * as noise from "./lib/noise.js";
import { exactly, nearest } from "./lib/precise.js";
import { usableThresholds } from "./lib/published.js";
import { randomiser } from "./lib/mechanisms.js";

const folder = process.argv[2];
const load = (name) => JSON.parse(readFileSync(join(folder, `${name}.json`), "utf8"));
const hex = (bytes) => Buffer.from(bytes).toString("hex");
const unhex = (text) => Buffer.from(text, "hex");
const checked = {};
const wrong = [];

/** Check every entry of a list; `check` gives pairs of what was found and what is wanted. */
function each(file, list, entries, check) {
  const name = `${file}.${list}`;
  checked[name] = entries.length;
  entries.forEach((entry, i) => {
    let pairs;
    try {
      pairs = check(entry);
    } catch (error) {
      pairs = [[`${error.name}: ${error.message}`, "no error"]];
    }
    pairs.forEach(([found, wanted], part) => {
      const [a, b] = [found, wanted].map((value) => JSON.stringify(value));
      if (a !== b) wrong.push(`${name}[${i}].${part}: ${a} is not ${b}`);
    });
  });
}

/** Equal to 15 digits. */
const near = (found, wanted) => {
  const [a, b] = [nearest(found), Number(wanted)];
  return [Math.abs(a - b) <= 1e-15 * Math.abs(b) * 2 || a === b, true];
};
const texts = (list) => list.flat().map(String);

// --- calibration ----------------------------------------------------------------------------------

const calibration = load("calibration");
const QUARTER = exactly(0.25);

each("calibration", "longitudinal", calibration.longitudinal, (entry) => {
  const { protocol, k, eps_inf: epsInf, eps_1: eps1, method } = entry;
  const size = noise.sizeOf(protocol, k, epsInf, eps1);
  const four = noise.chances(protocol, k, exactly(epsInf), exactly(eps1), method, size);
  const [ps, qs] = noise.support(four);
  return [
    [size, entry.size],
    [texts(noise.thresholds(protocol, k, epsInf, eps1, method)), entry.thresholds],
    ...["p1", "q1", "p2", "q2"].map((name, i) => near(four[i], entry[name])),
    near(ps, entry.ps),
    near(qs, entry.qs),
    near(noise.variance(four), entry.variance[0]),
    near(noise.variance(four, QUARTER), entry.variance[1]),
    ...Object.entries(entry.epsilon_after).map(([reports, told]) =>
      near(noise.lossAfter(size, k, four, Number(reports)), told),
    ),
  ];
});
each("calibration", "one_time", calibration.one_time, ({ protocol, k, epsilon, ...entry }) => {
  const size = noise.sizeOf(protocol, k, epsilon);
  const four = noise.chances(protocol, k, exactly(epsilon), 0n, "exact", size);
  return [[size, entry.size], near(four[0], entry.p1), near(four[1], entry.q1), near(noise.variance(four), entry.variance[0])];
});
each("calibration", "largest_eps_1", calibration.largest_eps_1, (entry) => [
  near(exactly(noise.largestEps1(entry.protocol, entry.eps_inf)), entry.largest_eps_1),
]);
each("calibration", "choice", calibration.choice, ({ k, eps_inf, eps_1, method, chosen }) => [
  [noise.chooseMemoized(k, eps_inf, eps_1, method), chosen],
]);

// --- manifests ------------------------------------------------------------------------------------

const manifests = load("manifests");
const byName = {};

each("manifests", "good", manifests.good, (entry) => {
  const manifest = readManifest(unhex(entry.hex));
  byName[entry.name] = manifest;
  const told = manifest.attributes.map((attribute) => ({
    name: attribute.name,
    k: attribute.k,
    runs: attribute.runs,
    answer_bytes: attribute.answerBytes,
    body_bytes: manifest.bodyBytes,
  }));
  return [
    [hex(manifest.digest), entry.digest],
    [manifest.campaign, entry.campaign],
    [told, entry.attributes],
    ...entry.receipts.map(({ device, round, tag, page }) => [
      [hex(tagOf(manifest.digest, round, device)), pageOf(manifest.digest, device, manifest.receipt_pages)],
      [tag, page],
    ]),
  ];
});
each("manifests", "refused_fields", manifests.refused_fields, (entry) => {
  try {
    readManifest(unhex(entry.hex));
  } catch (error) {
    return [[error instanceof Refused, true]];
  }
  return [["read", entry.why]];
});

// --- messages and topics --------------------------------------------------------------------------

const messages = load("messages");
const ours = (entries) => entries.filter(({ kind }) => kind !== "result"); // no device reads them

each("messages", "good", ours(messages.good), ({ kind, fields, hex: wanted }) => {
  const message = decodeMessage(kind, unhex(wanted));
  const found = Object.entries(fields).map(([name, value]) => {
    if (name === "manifest") return [hex(message.digest8), hex(byName[value].digest8)];
    if (name === "tags") return [hex(message.tags), value.join("")];
    return [message[name] instanceof Uint8Array ? hex(message[name]) : message[name], value];
  });
  return [[message.outcome, undefined], [hex(encodeMessage(kind, message)), wanted], ...found];
});
each("messages", "bad", ours(messages.bad), ({ kind, outcome, hex: given }) => [
  [decodeMessage(kind, unhex(given)).outcome, outcome],
]);

const topics = load("topics");
each("topics", "built", Object.entries(topics.built), ([name, wanted]) => {
  const built = topicsOf(topics.namespace, topics.campaign);
  const { device, page, round } = topics;
  const found = {
    manifest: built.manifest,
    signature: built.signature,
    thresholds: built.thresholds,
    state: built.state,
    receipt: built.receipt(round, page),
    report: built.report(device),
    request: built.request(device),
    response: built.response(device),
  };
  return name in found ? [[found[name], wanted]] : [];
});

each("topics", "addresses", topics.addresses, ({ address, names }) => {
  let found = null;
  try {
    const { broker, ...rest } = parseAddress(address);
    found = { ...broker, ...rest };
  } catch (error) {
    if (!(error instanceof AddressError)) throw error;
  }
  return [[found, names]];
});

// --- mechanisms -----------------------------------------------------------------------------------

const mechanisms = load("mechanisms");

each("mechanisms", "once", mechanisms.once, ({ k, eps_1, protocol, thresholds }) => [
  [noise.chooseOnce(k, eps_1), protocol],
  [texts(noise.onceThresholds(protocol, k, eps_1)), thresholds],
]);
each("mechanisms", "hashed", mechanisms.hashed, ({ eps_inf, eps_1, thresholds }) => [
  [texts(noise.thresholds("L-GRR", 2, eps_inf, eps_1, "exact")), thresholds],
]);
each("mechanisms", "nested", mechanisms.nested, ({ protocol, k, levels, thresholds }) => [
  [noise.nestedThresholds(protocol, k, levels).map(texts), thresholds],
]);
each("mechanisms", "choice", mechanisms.choice, ({ k, eps_inf, eps_1, rounds, chosen }) => [
  [noise.chooseMemoized(k, eps_inf, eps_1, "exact", rounds), chosen],
]);
each("mechanisms", "codes", mechanisms.codes, ({ digest, device, k, code }) => [
  [hex(noise.code(unhex(digest), device, k)), code],
]);
each("mechanisms", "domains", mechanisms.domains, ({ manifest, attribute, places }) => [
  [places.map(([value]) => placeOf(byName[manifest].attributes[attribute], value)), places.map(([, at]) => at)],
]);

/** Random bytes from a list, in order; asking for more than there are is a mistake. */
function tape(bytes) {
  let at = 0;
  const take = (size) => {
    if (at + size > bytes.length) throw new Error("more random bytes than the vector has");
    at += size;
    return bytes.subarray(at - size, at);
  };
  take.left = () => bytes.length - at;
  return take;
}

// --- whole devices: from random bytes to the bytes on the wire -------------------------------------

each("draws", "devices", load("draws").devices, (entry) => {
  const entropy = tape(unhex(entry.entropy));
  const manifest = byName[entry.manifest];
  const index = noise.uniform(manifest.attributes.length, entropy);
  const draws = randomiser(manifest, manifest.attributes[index], entry.device, entropy);
  const rounds = draws.rounds(entry.open_round);
  const key = draws.key(entry.value);
  const memo = draws.memoize(key);
  const first = entry.reports[0].round;
  const said = entry.reports.map(({ round }, sent) => ({
    round,
    topic: topicsOf("allomfree", manifest.campaign).report(entry.device),
    hex: hex(reportOf(manifest, round, index, draws.report(memo, sent))),
  }));
  return [
    [index, entry.attribute],
    [rounds, entry.rounds],
    [key, entry.key],
    [hex(memo), entry.memo],
    [said, entry.reports],
    [hex(tagOf(manifest.digest, first, entry.device)), entry.tag],
    [pageOf(manifest.digest, entry.device, manifest.receipt_pages), entry.page],
    [entropy.left(), 0],
  ];
});

// --- published thresholds --------------------------------------------------------------------------

const published = load("thresholds");
each("thresholds", "published", published.published, ({ manifest, hex: given }) => [
  [usableThresholds(byName[manifest], unhex(given)) !== null, true],
]);
each("thresholds", "checked", published.checked, ({ manifest, accepted, hex: given }) => [
  [usableThresholds(byName[manifest], unhex(given)) !== null, accepted],
]);

console.log(JSON.stringify({ checked, wrong: wrong.slice(0, 50), differences: wrong.length }, null, 1));
process.exit(wrong.length ? 1 : 0);
