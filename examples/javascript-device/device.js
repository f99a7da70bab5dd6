#!/usr/bin/env node
// A device of the allomfree protocol.
//
//   node device.js join ADDRESS --state DIR [--yes] [--username NAME --password-file FILE] [--ca-file FILE]
//   node device.js run  --state DIR --values FILE [--once] [credentials as above]
//
// FILE of --values is a JSON object, as in {"heater": "gas"}; it is read when a report is due.

import { readFileSync } from "node:fs";
import readline from "node:readline/promises";
import { parseArgs } from "node:util";
import { AddressError, parseAddress } from "./lib/address.js";
import { Device, join, randomName } from "./lib/device.js";
import { connect, stayConnected } from "./lib/link.js";
import { readManifest, Refused } from "./lib/manifest.js";
import { Memory, MemoryLost } from "./lib/memory.js";
import { isSigned, topicsOf } from "./lib/messages.js";
import { systemEntropy, uniform } from "./lib/noise.js";
import { isTrial } from "./lib/trial.js";

class Mistake extends Error {}

const now = () => Date.now() / 1000;
const say = (text) => console.log(text);
/** Foreign text as a terminal may safely show it. */
const shown = (text) => text.replace(/[^\p{L}\p{M}\p{N}\p{P}\p{S} ]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

const OPTIONS = {
  state: { type: "string" },
  values: { type: "string" },
  username: { type: "string" },
  "password-file": { type: "string" },
  "ca-file": { type: "string" },
  yes: { type: "boolean", default: false },
  once: { type: "boolean", default: false },
};

function credentialsOf(options) {
  const file = options["password-file"];
  return {
    username: options.username,
    password: file && readFileSync(file, "utf8").trim(),
    caFile: options["ca-file"],
  };
}

/** The retained messages of some topics, or nothing after some seconds. */
function fetchRetained(broker, credentials, topics, seconds = 20) {
  return new Promise((resolve, reject) => {
    const client = connect(broker, credentials);
    const found = {};
    const finish = (act) => {
      clearTimeout(timer);
      client.end(true, {}, act);
    };
    const timer = setTimeout(() => finish(() => resolve(found)), seconds * 1000);
    client.on("connect", () => client.subscribe(topics, { qos: 0 }));
    client.on("error", (error) =>
      finish(() => reject(new Mistake(`the broker cannot be used: ${error.message}; nothing was drawn`))),
    );
    client.on("message", (topic, payload) => {
      found[topic] = payload;
      if (topics.every((each) => each in found)) finish(() => resolve(found));
    });
  });
}

async function fetchManifest(address, credentials) {
  const topics = topicsOf(address.namespace, address.campaign);
  const { [topics.manifest]: bytes } = await fetchRetained(address.broker, credentials, [topics.manifest]);
  if (!bytes?.length) throw new Mistake("the broker holds no such campaign; nothing was drawn");
  const manifest = readManifest(bytes);
  const digits = manifest.digest.toString("hex");
  if (manifest.campaign !== address.campaign || (address.digest ?? digits) !== digits) {
    throw new Mistake("the manifest is not the one you were invited to; nothing was drawn"); // M12, M91
  }
  if (manifest.operator.length) {
    const { [topics.signature]: signature } = await fetchRetained(address.broker, credentials, [topics.signature]);
    if (!signature || !isSigned(manifest, signature)) {
      throw new Mistake("its operator's signature is missing or wrong; nothing was drawn"); // M95
    }
  }
  return { manifest, bytes };
}

function explain(manifest) {
  const signed = manifest.operator.length ? Buffer.from(manifest.operator).toString("hex") : "nobody";
  say(`${shown(manifest.title)}\n${shown(manifest.purpose)}`);
  say(`owner ${shown(manifest.owner)}, contact ${shown(manifest.contact)}; signed by ${signed}`);
  say(`digest ${manifest.digest.toString("hex")}`);
  if (isTrial(manifest)) say("a trial: the answers are made up here, no value is read, nothing is charged");
  say(`one question of ${manifest.attributes.length}, drawn at random, for life:`);
  for (const each of manifest.attributes) say(`  ${each.name}: ${shown(each.question)}`);
  say(`eps_inf ${manifest.eps_inf}, eps_1 ${manifest.eps_1}, reporting ${manifest.reporting}`);
}

async function joinCampaign(addressText, options) {
  if (!addressText || !options.state) throw new Mistake("join needs an ADDRESS and --state DIR");
  const address = parseAddress(addressText);
  const memory = await Memory.open(options.state);
  if (memory.state.campaign) throw new Mistake("this device has joined already; nothing was changed");
  const { manifest, bytes } = await fetchManifest(address, credentialsOf(options));
  explain(manifest);
  if (!options.yes && !(await agreed())) return say("Not joined; nothing was drawn.");
  const device = options.username ?? randomName(); // M2
  join(memory, bytes, { address, device });
  say(`joined ${manifest.campaign} as ${device}`);
}

async function agreed() {
  const terminal = readline.createInterface({ input: process.stdin, output: process.stdout });
  const answer = await terminal.question("Join? [y/N] ");
  terminal.close();
  return answer.trim().toLowerCase() === "y";
}

async function run(options) {
  if (!options.state || !options.values) throw new Mistake("run needs --state DIR and --values FILE");
  const memory = await Memory.open(options.state);
  const joined = memory.state.campaign;
  if (!joined) throw new Mistake("join a campaign first; nothing was drawn");
  const source = () => JSON.parse(readFileSync(options.values, "utf8"));
  const device = new Device(memory, source, say);
  let client, stop, counted = false;
  const finish = () => {
    clearInterval(clock);
    stop(() => process.exit(0));
  };
  const turn = () => {
    if (now() >= device.manifest.expires) return finish();
    drawWhenItIsTime(device);
    device.send(client, now());
    if (options.once && counted && device.waiting === 0) finish();
  };
  const clock = setInterval(turn, 250);
  stop = stayConnected(joined.address.broker, credentialsOf(options), {
    say,
    use: (fresh) => {
      client = fresh;
      device.connected(fresh);
    },
    hear: (topic, payload) => {
      const before = device.waiting;
      if (device.hear(topic, payload)) return finish();
      counted ||= device.waiting < before;
    },
  });
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, finish);
}

const moments = {}; // round: when it is drawn, uniform over the rest of the round (M38)

function drawWhenItIsTime(device) {
  const round = device.openRound(now());
  if (!device.isDue(round)) return;
  const left = device.closes(round) - now();
  moments[round] ??= now() + (left * uniform(65536, systemEntropy)) / 65536;
  if (now() >= moments[round] && device.draw(round)) say(`round ${round}: drawn and stored`);
}

try {
  const { values, positionals } = parseArgs({ options: OPTIONS, allowPositionals: true });
  const [verb, address] = positionals;
  if (verb === "join") await joinCampaign(address, values);
  else if (verb === "run") await run(values);
  else throw new Mistake("say `join` or `run`; the first lines of device.js show how");
} catch (error) {
  const expected = [Mistake, AddressError, Refused, MemoryLost].some((kind) => error instanceof kind);
  const options = error.code?.startsWith?.("ERR_PARSE_ARGS") || error.code === "ENOENT";
  if (!expected && !options) throw error;
  console.error(`error: ${error.message}`);
  process.exitCode = 2;
}
