// Where a campaign is (section 5): mqtts://host[:port]/[namespace/]slug-digest.

import { isIP } from "node:net";

export class AddressError extends Error {}

const CAMPAIGN = /^([a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?)-([0-9a-f]{8}|[0-9a-f]{64})$/;
const NAMESPACE = /^[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?$/;
const EXAMPLE = "mqtts://broker.example/allomfree/home-heat-… with all 64 digits";

const isLoopback = (host) =>
  host === "localhost" || host === "::1" || (isIP(host) === 4 && host.startsWith("127."));

/** Broker, namespace, campaign, and all 64 digits of the digest where the address has them. */
export function parseAddress(text) {
  if (text.includes("@")) {
    throw new AddressError("an address holds no user name or password; nothing was sent");
  }
  let url;
  try {
    url = new URL(text);
  } catch {
    throw new AddressError(`this is no address; one looks like ${EXAMPLE}`);
  }
  const tls = url.protocol === "mqtts:";
  const host = url.hostname.replace(/^\[|\]$/g, "");
  if ((!tls && url.protocol !== "mqtt:") || !host || url.search || url.hash) {
    throw new AddressError(`this is no address; one looks like ${EXAMPLE}`);
  }
  if (!tls && !isLoopback(host)) {
    throw new AddressError("mqtt:// is only for a broker on this machine; nothing was sent");
  }
  const levels = url.pathname.split("/").filter(Boolean);
  const [namespace, name] = levels.length === 1 ? ["allomfree", levels[0]] : levels;
  const found = CAMPAIGN.exec(name ?? "");
  if (levels.length > 2 || !NAMESPACE.test(namespace ?? "") || !found) {
    throw new AddressError(`the address names no campaign; one looks like ${EXAMPLE}`);
  }
  const [, slug, digits] = found;
  return {
    broker: { tls, host, port: Number(url.port) || (tls ? 8883 : 1883) },
    namespace,
    campaign: `${slug}-${digits.slice(0, 8)}`,
    digest: digits.length === 64 ? digits : null,
  };
}
