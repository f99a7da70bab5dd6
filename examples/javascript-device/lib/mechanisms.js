// The four ways of reporting (sections 8 and 9), behind one interface: what a device draws once and
// keeps, and what it draws for a round. It keeps nothing itself: that is `memory.js`.

import {
  code,
  drawRounds,
  nestedThresholds,
  onceThresholds,
  plainAnswer,
  respond,
  systemEntropy,
  thresholds,
} from "./noise.js";

/** rounds(first): those to answer, or null for all. key(index): what a memo belongs to. memoize(key)
 * and report(memo, sent): the memo; the answer of a round, when so many were drawn from the memo. */
export function randomiser(manifest, attribute, device, entropy = systemEntropy) {
  return WAYS[manifest.reporting](manifest, attribute, device, entropy);
}

/** How many memos a device may hold; 0 where it keeps none. */
export function mostMemos(manifest) {
  return { memoized: manifest.max_values, once: 0, hashed: 2, nested: 1 }[manifest.reporting];
}

const always = { rounds: () => null };

const WAYS = {
  memoized(manifest, { runs, bits, k, calibration }, _device, entropy) {
    const [rr1, rr2] = thresholds(runs, k, manifest.eps_inf, manifest.eps_1, calibration);
    return {
      ...always,
      key: (index) => index,
      memoize: (index) => respond(bits, k, plainAnswer(bits, k, index), rr1, entropy),
      report: (memo) => respond(bits, k, memo, rr2, entropy),
    };
  },

  once(manifest, { runs, bits, k }, _device, entropy) {
    const step = onceThresholds(runs, k, manifest.eps_1);
    const { count, each } = manifest.rounds;
    return {
      rounds: (first) => drawRounds(first, count, each, entropy),
      key: (index) => index,
      memoize: (index) => respond(bits, k, plainAnswer(bits, k, index), step, entropy),
      report: (answer) => answer,
    };
  },

  hashed(manifest, { k }, device, entropy) {
    const [rr1, rr2] = thresholds("L-GRR", 2, manifest.eps_inf, manifest.eps_1, "exact");
    const cells = code(manifest.digest, device, k);
    return {
      ...always,
      key: (index) => (cells[index >> 3] & (0x80 >> (index & 7)) ? 1 : 0),
      memoize: (cell) => respond(false, 2, plainAnswer(false, 2, cell), rr1, entropy),
      report: (memo) => respond(false, 2, memo, rr2, entropy),
    };
  },

  nested(_manifest, { runs, bits, k, levels, answerBytes }, _device, entropy) {
    const steps = nestedThresholds(runs, k, levels);
    const size = answerBytes - 1;
    return {
      ...always,
      key: (index) => index,
      memoize(index) {
        const drawn = [];
        let said = plainAnswer(bits, k, index);
        for (const step of [...steps].reverse()) {
          said = respond(bits, k, said, step, entropy);
          drawn.unshift(said);
        }
        return Buffer.concat(drawn); // all levels at once, level 1 first (M82)
      },
      report(memo, sent) {
        const level = Math.min(sent + 1, levels.length);
        return Buffer.concat([Buffer.of(level), memo.subarray(size * (level - 1), size * level)]);
      },
    };
  },
};
