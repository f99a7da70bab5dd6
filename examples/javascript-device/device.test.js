// What a device does, without a broker: node --test. Campaigns are those of the vectors.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join as path } from "node:path";
import test from "node:test";
import { Device, join } from "./lib/device.js";
import { readManifest } from "./lib/manifest.js";
import { Memory, MemoryLost } from "./lib/memory.js";
import { decodeMessage, encodeMessage, tagOf } from "./lib/messages.js";

const VECTORS = process.env.VECTORS ?? new URL("../../protocol_spec/vectors", import.meta.url).pathname;
const { good } = JSON.parse(readFileSync(path(VECTORS, "manifests.json"), "utf8"));
const campaign = (name) => Buffer.from(good.find((each) => each.name === name).hex, "hex");
const address = { broker: { tls: false, host: "localhost", port: 1 }, namespace: "allomfree" };

/** The manifest under a title of the same length that marks it as a trial. */
const asTrial = (bytes) => {
  const { title } = readManifest(bytes);
  const at = bytes.indexOf(title);
  return Buffer.concat([bytes.subarray(0, at), Buffer.from("TRIAL: ".padEnd(title.length, "x")), bytes.subarray(at + title.length)]);
};

/** A device that has joined, with a value that the test sets, and a steady clock that it moves. */
function joined(name, { now, change = (bytes) => bytes } = {}) {
  const folder = mkdtempSync(path(tmpdir(), "device-"));
  const memory = new Memory(folder);
  join(memory, change(campaign(name)), { address, device: "k7f3-0b2q", now });
  const found = { folder, steady: 1000, values: {}, reads: 0 };
  const source = () => {
    found.reads += 1;
    if (found.values === null) throw new Error("a source that fails");
    return found.values;
  };
  found.open = () => new Device(new Memory(folder), source, () => {}, () => found.steady);
  found.device = found.open();
  found.state = () => found.device.memory.state.campaign;
  found.draw = (round) => {
    found.steady += found.device.manifest.rounds.period;
    return found.device.draw(round);
  };
  return found;
}

test("a report is drawn once per round, and never for an earlier one", () => {
  const one = joined("plain");
  assert.equal(one.draw(3), true);
  const { outbox } = structuredClone(one.state());
  assert.equal(one.draw(3), false);
  assert.equal(one.draw(2), false);
  assert.deepEqual(one.state().outbox, outbox);
  one.device = one.open(); // after a restart, too
  assert.equal(one.draw(3), false);
  assert.deepEqual(one.state().outbox, outbox);
});

test("a value beyond max_values is answered from the last memo, and so is none at all", () => {
  const one = joined("plain"); // max_values 1
  one.values = { door: "open" };
  one.draw(0);
  const { memos } = structuredClone(one.state());
  for (const [round, values] of [[1, { door: "closed" }], [2, {}], [3, null]]) {
    one.values = values;
    assert.equal(one.draw(round), true);
    assert.deepEqual(Object.keys(one.state().memos), Object.keys(memos));
  }
  assert.equal(one.state().charged, one.device.manifest.eps_inf);
  const lengths = Object.values(one.state().outbox).map((bytes) => bytes.length);
  assert.equal(new Set(lengths).size, 1);
});

test("a pair is one answer, and only the value that is missing is replaced", () => {
  let one = joined("cars");
  while (one.state().attribute !== 1) one = joined("cars"); // the other question is no pair
  one.values = { model: "large" };
  one.draw(0);
  assert.deepEqual(Object.keys(one.state().memos), [String(1 * 4 + 3)]);
  assert.equal(one.reads, 2);
});

test("in a trial the value is made up: nothing is read or charged", () => {
  const one = joined("plain", { change: asTrial });
  one.values = { door: "open" };
  for (const round of [0, 1, 2]) assert.equal(one.draw(round), true);
  assert.equal(one.reads, 0);
  assert.equal(Object.keys(one.state().memos).length, 1);
  assert.equal(one.state().charged, 0);
});

test("the source is read only when a report is due", () => {
  const one = joined("plain");
  one.device.send(undefined, 0);
  assert.equal(one.reads, 0);
  one.draw(0);
  one.draw(0);
  assert.equal(one.reads, 1);
});

test("a clock that is set forward does not hurry it (M15)", () => {
  const one = joined("plain");
  assert.equal(one.device.draw(5), true);
  assert.equal(one.device.draw(6), true); // the end of one round and the beginning of the next
  assert.equal(one.device.draw(7), false);
  assert.equal(one.device.draw(29), false);
  one.steady += one.device.manifest.rounds.period;
  assert.equal(one.device.draw(7), true);
  assert.equal(one.device.draw(8), false);
});

test("once: silent but in its rounds, charged from joining on, drawn afresh", () => {
  const one = joined("trend", { now: 0 });
  const { rounds, charged } = one.state();
  assert.equal(rounds.length, 2);
  assert.equal(charged, one.device.manifest.eps_inf);
  const drawn = [...Array(30).keys()].filter((round) => one.draw(round));
  assert.deepEqual(drawn, rounds);
  assert.deepEqual(one.state().memos, {});
});

test("nested: level after level, and the last one from then on", () => {
  const one = joined("steps");
  const attribute = one.device.manifest.attributes[one.state().attribute];
  const count = attribute.levels.length;
  for (let round = 0; round < count + 2; round += 1) one.draw(round);
  const levels = Object.values(one.state().outbox).map(
    (bytes) => decodeMessage("report", Buffer.from(bytes, "hex")).body[0],
  );
  assert.deepEqual(levels, [...levels.keys()].map((i) => Math.min(i + 1, count)));
});

test("hashed: two memos at most, whatever changes", () => {
  const one = joined("cells");
  for (let round = 0; round < 12; round += 1) {
    one.values = { letter: "abcdefgh"[round % 8], hour: 2 * round };
    one.draw(round);
  }
  assert.ok(Object.keys(one.state().memos).length <= 2);
  assert.equal(one.state().charged, one.device.manifest.eps_inf * Object.keys(one.state().memos).length);
});

test("only its own receipt, on its own page, ends a report; nothing that arrives draws", () => {
  const one = joined("plain");
  one.draw(0);
  const { device: name } = one.state();
  const { digest, digest8 } = one.device.manifest;
  const tag = tagOf(digest, 0, name);
  const page = { digest8, round: 0, page: one.device.page, tags: tag };
  const topic = one.device.topics.receipt(0, one.device.page);
  const reads = one.reads;
  const hear = (at, fields) => one.device.hear(at, encodeMessage("receipts", fields));
  hear(topic, { ...page, tags: tagOf(digest, 0, "another") });
  hear(topic, { ...page, digest8: Buffer.alloc(8) });
  hear(one.device.topics.receipt(1, one.device.page), page);
  one.device.hear(topic, Buffer.from("no message"));
  one.device.hear(topic, Buffer.alloc(0));
  assert.equal(one.device.waiting, 1);
  assert.equal(one.reads, reads);
  hear(topic, page);
  assert.equal(one.device.waiting, 0);
  const closed = encodeMessage("state", { digest8, presence: 2, last_sealed: null });
  assert.equal(one.device.hear(one.device.topics.state, closed), true);
});

test("a report is dropped at its deadline, and not before", () => {
  const one = joined("plain");
  one.draw(0);
  one.device.send(undefined, one.device.deadline(0) - 1);
  assert.equal(one.device.waiting, 1);
  one.device.send(undefined, one.device.deadline(0));
  assert.equal(one.device.waiting, 0);
});

test("what is sent is what was stored, again after a reconnect", () => {
  const one = joined("plain");
  one.draw(0);
  const sent = [];
  const client = {
    connected: true,
    publish: (topic, bytes, { qos, retain }) => sent.push([topic, bytes.toString("hex"), qos, retain]),
    subscribe: () => {},
    unsubscribe: () => {},
  };
  one.device.send(client, 0);
  one.device.send(client, 0); // not again before its pause is over
  assert.equal(sent.length, 1);
  one.device.connected(client);
  one.device.send(client, 0);
  assert.deepEqual(sent[1], sent[0]);
  assert.deepEqual(sent[0].slice(1), [one.state().outbox[0], 1, false]);
});

test("a page is read once the broker has the report, twice at most, and once for each sending", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const one = joined("plain");
  one.draw(0);
  const topic = one.device.topics.receipt(0, one.device.page);
  const { digest, digest8 } = one.device.manifest;
  const page = (device) => encodeMessage("receipts", { digest8, round: 0, page: one.device.page, tags: tagOf(digest, 0, device) });
  let read = false;
  const client = {
    connected: true,
    publish: (_topic, _bytes, _options, done) => done(),
    subscribe: (asked) => (read ||= asked === topic),
    unsubscribe: (asked) => (read &&= asked !== topic),
  };
  one.device.connected(client);
  one.device.send(client, 0);
  assert.equal(read, false);
  t.mock.timers.tick(3000);
  for (const left of [true, false]) {
    assert.equal(read, true);
    one.device.hear(topic, page("another"));
    assert.equal(read, left);
  }
  const later = performance.now() + 3_600_000;
  t.mock.method(performance, "now", () => later);
  one.device.send(client, 0);
  t.mock.timers.tick(3000);
  assert.equal(read, true);
  one.device.hear(topic, page(one.state().device));
  assert.equal(read, false);
  assert.equal(one.device.waiting, 0);
});

test("a memory that is gone or older is refused; one that was never used is new", () => {
  const one = joined("plain");
  rmSync(path(one.folder, "memory.json"));
  assert.throws(() => one.open(), MemoryLost);
  assert.equal(new Memory(mkdtempSync(path(tmpdir(), "device-"))).state.campaign, null);
});
