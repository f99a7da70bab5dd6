// Trials: campaigns in which every device answers with a value that it makes up (M117).

import { uniform } from "./noise.js";

export const isTrial = (manifest) => manifest.title.startsWith("TRIAL: ");

/** Value i of k, from 1 on, with a probability proportional to the whole part of 2^24 / i. */
export function madeUpValue(k, entropy) {
  const weights = Array.from({ length: k }, (_, place) => Math.floor(2 ** 24 / (place + 1)));
  let left = uniform(weights.reduce((sum, weight) => sum + weight), entropy);
  return weights.findIndex((weight) => (left -= weight) < 0);
}
