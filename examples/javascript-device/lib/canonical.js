// One canonical form (M4, M5). JavaScript has one kind of number, msgpack has two: 1 and 1.0 are
// other bytes. So whoever encodes says which fields are floats, by wrapping them in F64.

import { decode } from "@msgpack/msgpack";

export class F64 {
  constructor(value) {
    this.value = value;
  }
}

/** The one encoding: null, booleans, integers (number or bigint), F64, strings, bytes, arrays, and
 * maps as arrays of pairs in a Map. */
export function encode(value) {
  const parts = [];
  write(value, parts);
  return Buffer.concat(parts);
}

function write(value, parts) {
  if (value === null) parts.push(Buffer.of(0xc0));
  else if (typeof value === "boolean") parts.push(Buffer.of(value ? 0xc3 : 0xc2));
  else if (typeof value === "number" || typeof value === "bigint") parts.push(whole(BigInt(value)));
  else if (value instanceof F64) parts.push(float(value.value));
  else if (typeof value === "string") {
    const bytes = Buffer.from(value, "utf8");
    parts.push(header(bytes.length, 0xa0, 31, [0xd9, 0xda, 0xdb]), bytes);
  } else if (value instanceof Uint8Array) {
    parts.push(header(value.length, 0, -1, [0xc4, 0xc5, 0xc6]), Buffer.from(value));
  } else if (Array.isArray(value)) {
    parts.push(header(value.length, 0x90, 15, [null, 0xdc, 0xdd]));
    for (const item of value) write(item, parts);
  } else {
    parts.push(header(value.size, 0x80, 15, [null, 0xde, 0xdf]));
    for (const [key, item] of value) {
      write(key, parts);
      write(item, parts);
    }
  }
}

function header(length, small, most, [one, two, four]) {
  if (length <= most) return Buffer.of(small | length);
  if (one !== null && length < 0x100) return Buffer.of(one, length);
  if (length < 0x10000) return Buffer.of(two, length >> 8, length & 0xff);
  const found = Buffer.of(four, 0, 0, 0, 0);
  found.writeUInt32BE(length, 1);
  return found;
}

/** Shortest form. The protocol has no negative integers. */
function whole(value) {
  if (value < 0n) throw new RangeError("no integer of the protocol is negative");
  if (value < 0x80n) return Buffer.of(Number(value));
  if (value < 0x100n) return Buffer.of(0xcc, Number(value));
  if (value < 0x10000n) return Buffer.of(0xcd, Number(value >> 8n), Number(value & 0xffn));
  const found = Buffer.alloc(value < 0x100000000n ? 5 : 9);
  found[0] = found.length === 5 ? 0xce : 0xcf;
  if (found.length === 5) found.writeUInt32BE(Number(value), 1);
  else found.writeBigUInt64BE(value, 1);
  return found;
}

function float(value) {
  const found = Buffer.alloc(9);
  found[0] = 0xcb;
  found.writeDoubleBE(value, 1);
  return found;
}

/** Plain values of bytes, every inner length bounded before anything is allocated for it; undefined
 * where the bytes are no msgpack within the bounds. Whoever calls it checks the values, encodes them
 * again and compares: that finds trailing bytes, other orders, longer forms, floats for integers. */
export function decodeWithin(bytes, { array, text = 0, binary = 0, maps = 0 }) {
  try {
    return plain(
      decode(bytes, {
        useBigInt64: true,
        maxArrayLength: array,
        maxStrLength: text,
        maxBinLength: binary,
        maxMapLength: maps,
        maxExtLength: 0,
      }),
    );
  } catch {
    return undefined;
  }
}

/** 64-bit integers that a number holds exactly become numbers. */
function plain(value) {
  if (typeof value === "bigint") {
    return value <= BigInt(Number.MAX_SAFE_INTEGER) && value >= 0n ? Number(value) : value;
  }
  if (Array.isArray(value)) return value.map(plain);
  if (value !== null && typeof value === "object" && !(value instanceof Uint8Array)) {
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, plain(item)]));
  }
  return value;
}
