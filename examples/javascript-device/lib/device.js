// A device that has joined: when it draws, what it keeps, and how it sends (sections 4, 9 and 10).

import { readFileSync } from "node:fs";
import os from "node:os";
import { joined, placeOf, readManifest } from "./manifest.js";
import { decodeMessage, hasTag, pageOf, reportOf, tagOf, topicsOf } from "./messages.js";
import { RECEIPT, RESEND, pause } from "./link.js";
import { systemEntropy, uniform } from "./noise.js";
import { isTrial, madeUpValue } from "./trial.js";
import { mostMemos, randomiser } from "./mechanisms.js";

const NAME_LETTERS = "abcdefghijklmnopqrstuvwxyz234567";

/** 80 random bits, derived from nothing (M2). */
export const randomName = () =>
  [...systemEntropy(16)].map((byte) => NAME_LETTERS[byte >> 3]).join("");

/** Consent: everything that is drawn once for life is drawn here, and kept (M30, M80). */
export function join(memory, manifestBytes, { address, device, now = Date.now() / 1000 }) {
  const manifest = readManifest(manifestBytes);
  const attribute = uniform(manifest.attributes.length, systemEntropy);
  const { first, period } = manifest.rounds;
  const open = Math.max(0, Math.floor((now - first) / period));
  const draws = randomiser(manifest, manifest.attributes[attribute], device);
  memory.change((state) => {
    state.campaign = {
      manifest: manifestBytes.toString("hex"),
      address,
      device,
      attribute,
      rounds: draws.rounds(open),
      memos: {}, // key: { memo, reports }
      lastKey: null,
      lastRound: -1,
      outbox: {}, // round: bytes, until a receipt or the deadline
      pace: null,
      charged: manifest.reporting === "once" && !isTrial(manifest) ? manifest.eps_inf : 0,
    };
  });
}

export class Device {
  #sent = {}; // round: { times, next, pages }, of this process
  #client; // of the current connection

  constructor(memory, source, say, steady = os.uptime) {
    this.memory = memory;
    this.steady = steady; // seconds that no clock setting changes
    this.source = source; // reads the value when a report is due, and only then
    this.say = say;
    const { manifest, device, address } = memory.state.campaign;
    this.manifest = readManifest(Buffer.from(manifest, "hex"));
    this.topics = topicsOf(address.namespace, this.manifest.campaign);
    this.page = pageOf(this.manifest.digest, device, this.manifest.receipt_pages);
  }

  get #joined() {
    return this.memory.state.campaign;
  }

  /** The open round, or null: from the manifest and this device's own clock alone (M13, M14). */
  openRound(now) {
    const { first, period, count } = this.manifest.rounds;
    if (now < first || now < this.manifest.created) return null;
    const round = Math.floor((now - first) / period);
    return round < count ? round : null;
  }

  closes = (round) => this.manifest.rounds.first + (round + 1) * this.manifest.rounds.period;
  deadline = (round) => this.closes(round) + this.manifest.rounds.grace;

  isDue(round) {
    const { rounds, lastRound } = this.#joined;
    return round !== null && round > lastRound && (rounds === null || rounds.includes(round));
  }

  /** Draw this round's report and make it durable, in one change (M34, M36, M37). */
  draw(round) {
    if (!this.isDue(round) || !this.#inTime(round)) return false;
    const joined = this.#joined;
    const attribute = this.manifest.attributes[joined.attribute];
    const draws = randomiser(this.manifest, attribute, joined.device);
    const most = mostMemos(this.manifest);
    const key = this.#key(attribute, draws, most);
    this.memory.change(({ campaign: next }) => {
      let kept = next.memos[key];
      if (kept === undefined) {
        kept = { memo: draws.memoize(key).toString("hex"), reports: 0 };
        if (most > 0) {
          next.memos[key] = kept;
          if (!isTrial(this.manifest)) next.charged += this.manifest.eps_inf;
        }
      }
      const answer = draws.report(Buffer.from(kept.memo, "hex"), kept.reports);
      kept.reports += 1;
      next.lastKey = key;
      next.lastRound = round;
      next.pace = this.#pace(round);
      next.outbox[round] = reportOf(this.manifest, round, joined.attribute, answer).toString("hex");
    });
    return true;
  }

  /** Which memo answers: the value's own, a new one while there may be more, else the last (M35). A
   * device always answers: without a usable value as M79 and M86 say. */
  #key(attribute, draws, most) {
    const { memos, lastKey } = this.#joined;
    const trial = isTrial(this.manifest); // nothing is read (M117)
    const asked = trial ? [] : (attribute.cross ?? [attribute]);
    const places = asked.map((each) => placeOf(each, this.#value(each.name)));
    if ((trial || places.includes(null)) && lastKey !== null && most > 0) return lastKey;
    const whole = places.map((place, i) => place ?? uniform(asked[i].k, systemEntropy));
    const key = draws.key(trial ? madeUpValue(attribute.k, systemEntropy) : joined(attribute, whole));
    if (most === 0 || memos[key] !== undefined || Object.keys(memos).length < most) return key;
    return lastKey;
  }

  /** The value now, or undefined when it cannot be read: that is a value like any other. */
  #value(name) {
    try {
      return this.source()[name];
    } catch {
      return undefined;
    }
  }

  /** M15: a clock that is set forward does not hurry a device. Of all draws since the machine
   * started, `offset` is the largest of (steady time - round x period): so in any t seconds there
   * are at most t / period + 2 of them. */
  #inTime(round) {
    const { pace } = this.#joined;
    if (pace === null || pace.boot !== bootId()) return true;
    return this.steady() >= pace.offset + (round - 1) * this.manifest.rounds.period;
  }

  #pace(round) {
    const { pace } = this.#joined;
    const offset = this.steady() - round * this.manifest.rounds.period;
    const same = pace !== null && pace.boot === bootId();
    return { boot: bootId(), offset: same ? Math.max(pace.offset, offset) : offset };
  }

  /** Drop what is past its deadline, and send what is due: always the stored bytes (M37, M43). */
  send(client, now) {
    for (const [round, bytes] of Object.entries(this.#joined.outbox)) {
      if (now >= this.deadline(Number(round))) this.#drop(round, "not counted in time");
      else if (client?.connected) this.#sendOne(client, round, bytes);
    }
  }

  #sendOne(client, round, bytes) {
    const sent = (this.#sent[round] ??= { times: 0, next: 0 });
    if (performance.now() < sent.next) return;
    const wait = pause(RESEND, sent.times++);
    sent.next = performance.now() + wait;
    sent.pages = sent.times > 1 ? 1 : 2; // to be read, at most (M118)
    const receipts = this.topics.receipt(round, this.page);
    client.unsubscribe(receipts);
    const topic = this.topics.report(this.#joined.device);
    client.publish(topic, Buffer.from(bytes, "hex"), { qos: 1, retain: false }, (error) => {
      const read = () => client.connected && round in this.#joined.outbox && client.subscribe(receipts, { qos: 0 });
      if (!error) setTimeout(read, Math.min(RECEIPT, wait / 2)).unref();
    });
  }

  /** After a reconnect everything is sent again; what is read is retained, so QoS 0 will do (M17). */
  connected(client) {
    this.#sent = {};
    this.#client = client;
    client.subscribe(this.topics.state, { qos: 0 });
  }

  /** Nothing that arrives can cause a draw: at most a report is dropped, or the campaign is over. */
  hear(topic, payload) {
    if (payload.length === 0) return false; // cleared (M7)
    if (topic === this.topics.state) {
      const state = decodeMessage("state", payload);
      return this.#isOurs(state) && state.presence === 2;
    }
    const page = decodeMessage("receipts", payload);
    if (!this.#isOurs(page) || topic !== this.topics.receipt(page.round, this.page)) return false;
    const tag = tagOf(this.manifest.digest, page.round, this.#joined.device);
    const sent = this.#sent[page.round];
    const counted = page.round in this.#joined.outbox && hasTag(page.tags, tag);
    if (counted) this.#drop(page.round, "counted");
    if (counted || (sent && --sent.pages <= 0)) this.#client?.unsubscribe(topic); // M118
    return false;
  }

  #isOurs(message) {
    return !message.outcome && this.manifest.digest8.equals(Buffer.from(message.digest8)); // M19
  }

  #drop(round, why) {
    this.memory.change(({ campaign }) => delete campaign.outbox[round]);
    this.say(`round ${round}: ${why}`);
  }

  get waiting() {
    return Object.keys(this.#joined.outbox).length;
  }
}

function bootId() {
  try {
    return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
  } catch {
    return "unknown";
  }
}
