// Messages but manifests and results (section 6), topics (section 5), receipts (section 10).

import { createHash, createPublicKey, verify } from "node:crypto";
import { decodeWithin, encode } from "./canonical.js";

const uint = (bound) => (v) => Number.isSafeInteger(v) && 0 <= v && v < bound;
const bytes = (length) => (v) => v instanceof Uint8Array && v.length === length;
const DIGEST8 = bytes(8);

const sized = (low, high, unit) => (v) =>
  v instanceof Uint8Array && low <= v.length && v.length <= high && v.length % unit === 0;

function ascending(tags) {
  if (!(tags instanceof Uint8Array) || tags.length % 4) return false;
  const joined = Buffer.from(tags);
  for (let i = 4; i < joined.length; i += 4) {
    if (joined.readUInt32BE(i - 4) >= joined.readUInt32BE(i)) return false;
  }
  return true;
}

const ROUND = uint(65536);
const BODY = sized(0, 513, 1);
// Of each kind: its limit in bytes, and names and checks of the items behind the version.
const KINDS = {
  report: [533, { digest8: DIGEST8, round: ROUND, attribute: uint(128), body: BODY }],
  signature: [78, { digest8: DIGEST8, signature: bytes(64) }],
  thresholds: [65683, { digest8: DIGEST8, protocols: sized(1, 128, 1), steps: sized(16, 65536, 16) }],
  state: [64, { digest8: DIGEST8, presence: uint(3), last_sealed: (v) => v === null || ROUND(v) }],
  receipts: [1621, { digest8: DIGEST8, round: ROUND, page: uint(65536), tags: ascending }],
  request: [64, { digest8: DIGEST8, kind: (v) => v === 1, nonce: bytes(8) }],
  response: [
    64,
    {
      digest8: DIGEST8,
      kind: (v) => v === 1,
      nonce: bytes(8),
      status: uint(2),
      rounds: uint(65537),
    },
  ],
};

/** The named items of a message, or why it is none: any bytes give one of them (M6). */
export function decodeMessage(kind, payload) {
  const [limit, items] = KINDS[kind];
  if (payload.length > limit) return { outcome: "oversize" };
  const given = decodeWithin(payload, { array: 1 + Object.keys(items).length, binary: limit });
  const checks = Object.entries(items);
  const sound =
    Array.isArray(given) &&
    given.length === 1 + checks.length &&
    given[0] === 1 &&
    checks.every(([, check], i) => check(given[i + 1]));
  if (!sound || !encode(given).equals(Buffer.from(payload))) return { outcome: "malformed" };
  const named = checks.map(([name], i) => [name, given[i + 1]]);
  return Object.fromEntries(named);
}

/** The bytes of a message from its named items. */
export function encodeMessage(kind, fields) {
  const items = Object.keys(KINDS[kind][1]).map((name) => fields[name]);
  return encode([1, ...items]);
}

/** M68: zero bytes behind the answer, up to the campaign's one length. */
export function reportOf(manifest, round, attribute, answer) {
  const filled = Buffer.alloc(manifest.bodyBytes);
  filled.set(answer);
  return encodeMessage("report", { digest8: manifest.digest8, round, attribute, body: filled });
}

const uint32 = (number) => {
  const found = Buffer.alloc(4);
  found.writeUInt32BE(number);
  return found;
};
const sha256 = (...parts) => {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return hash.digest();
};

/** M41, M42 */
export const tagOf = (digest, round, device) =>
  sha256(digest, uint32(round), Buffer.from(device, "ascii")).subarray(0, 4);
export const pageOf = (digest, device, pages) =>
  sha256(digest, Buffer.from(device, "ascii")).readUInt32BE(0) % pages;

export function hasTag(tags, tag) {
  for (let i = 0; i < tags.length; i += 4) {
    if (tag.equals(Buffer.from(tags.subarray(i, i + 4)))) return true;
  }
  return false;
}

/** M95: by the key in the manifest, of the words and the whole digest. */
export function isSigned(manifest, payload) {
  const message = decodeMessage("signature", payload);
  if (message.outcome || !manifest.digest8.equals(Buffer.from(message.digest8))) return false;
  const x = Buffer.from(manifest.operator).toString("base64url");
  const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
  const words = Buffer.from("allomfree manifest signature, version 1\0", "ascii");
  return verify(null, Buffer.concat([words, manifest.digest]), key, message.signature);
}

export const topicsOf = (namespace, campaign) => {
  const root = `${namespace}/v1/${campaign}`;
  return {
    manifest: `${root}/pub/manifest`,
    signature: `${root}/pub/signature`,
    thresholds: `${root}/pub/thresholds`,
    state: `${root}/pub/state`,
    receipt: (round, page) => `${root}/pub/receipt/${round}/${page}`,
    report: (device) => `${root}/up/${device}/report`,
    request: (device) => `${root}/up/${device}/request`,
    response: (device) => `${root}/down/${device}/response`,
  };
};
