// Numbers with 400 binary digits behind the point, as bigints: more than the 80 decimal digits that
// section 8 asks for (M26). Nothing that a manifest may ask for comes near 2^400.

const BITS = 400n;
export const ONE = 1n << BITS;
export const HALF = ONE / 2n;

export const from = (whole) => BigInt(whole) << BITS;
export const mul = (a, b) => (a * b) >> BITS;
export const div = (a, b) => (a << BITS) / b;

const view = new DataView(new ArrayBuffer(8));

/** The exact value of a float64 that is not negative. */
export function exactly(number) {
  view.setFloat64(0, number);
  const bits = view.getBigUint64(0);
  const exponent = bits >> 52n;
  const fraction = bits & 0xfffffffffffffn;
  if (exponent === 0n) return (fraction << BITS) >> 1074n;
  return ((fraction | 0x10000000000000n) << BITS << exponent) >> 1075n;
}

/** The next float64 below a positive one (M28). */
export function below(number) {
  view.setFloat64(0, number);
  view.setBigUint64(0, view.getBigUint64(0) - 1n);
  return view.getFloat64(0);
}

/** The nearest float64. Dividing by a power of two rounds nothing. */
export const nearest = (value) => Number(value) / 2 ** Number(BITS);

/** Taylor's series of x / 2^32, squared 32 times. */
export function exp(x) {
  const small = x >> 32n;
  let term = ONE;
  let sum = ONE;
  for (let n = 1n; term !== 0n && term !== -1n; n += 1n) {
    term = mul(term, small) / n;
    sum += term;
  }
  for (let times = 0; times < 32; times += 1) sum = mul(sum, sum);
  return sum;
}

/** Newton's method from the float64: every step doubles the number of right digits. */
export function ln(x) {
  let y = BigInt(Math.round(Math.log(nearest(x)) * 2 ** 50)) << (BITS - 50n);
  for (let step = 0; step < 4; step += 1) y += mul(x, exp(-y)) - ONE;
  return y;
}

export function sqrt(x) {
  if (x === 0n) return 0n;
  const square = x << BITS;
  let root = 1n << (BigInt(square.toString(2).length + 1) / 2n);
  for (;;) {
    const next = (root + square / root) >> 1n;
    if (next >= root) return root;
    root = next;
  }
}

export function power(base, exponent) {
  let found = ONE;
  for (let times = 0; times < exponent; times += 1) found = mul(found, base);
  return found;
}
