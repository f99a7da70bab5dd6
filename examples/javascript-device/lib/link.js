// One connection to a broker at a time, and the pauses between them (section 5, numbers of M112).

import { readFileSync } from "node:fs";
import mqtt from "mqtt";
import { systemEntropy, uniform } from "./noise.js";

/** Between half and all of a pause, so that a fleet does not return as one. */
export const jittered = (milliseconds) =>
  milliseconds * (0.5 + uniform(65536, systemEntropy) / 131072);

const SECOND = 1000;
const STEADY = 5 * SECOND;
const RECONNECT = [2 * SECOND, 300 * SECOND];
export const RECEIPT = 3 * SECOND;
export const RESEND = [15 * SECOND, 900 * SECOND];
export const pause = ([first, longest], times) => jittered(Math.min(longest, first * 2 ** times));

/** A new client each time: its identifier says nothing (M97), its session ends with it (M111). */
export function connect({ tls, host, port }, { username, password, caFile }) {
  return mqtt.connect({
    protocol: tls ? "mqtts" : "mqtt",
    host,
    port,
    username,
    password,
    ca: caFile && readFileSync(caFile),
    rejectUnauthorized: true,
    protocolVersion: 4, // MQTT 3.1.1 is enough, everywhere (M1)
    clientId: `edge-${systemEntropy(8).toString("hex")}`,
    clean: true,
    keepalive: 60,
    connectTimeout: 30 * SECOND,
    reconnectPeriod: 0,
    queueQoSZero: false,
  });
}

/** Stay connected until `stop` is called; `use(client)` runs after every connect. */
export function stayConnected(broker, credentials, { use, hear, say }) {
  let client, timer, failures = 0, stopped = false;
  const open = () => {
    client = connect(broker, credentials);
    let worthHaving;
    client.on("connect", () => {
      // A broker that accepts and breaks every connection is asked less and less often.
      worthHaving = setTimeout(() => (failures = 0), STEADY);
      use(client);
    });
    client.on("packetreceive", ({ cmd }) => {
      if (cmd === "puback") failures = 0;
    });
    client.on("message", (topic, payload) => hear(topic, payload));
    client.on("error", (error) => say(`broker: ${error.code ?? error.message}`));
    client.on("close", () => {
      client.removeAllListeners("close");
      clearTimeout(worthHaving);
      client.end(true);
      if (!stopped) timer = setTimeout(open, pause(RECONNECT, failures++));
    });
  };
  open();
  return (done) => {
    stopped = true;
    clearTimeout(timer);
    client.end(false, {}, done);
  };
}
