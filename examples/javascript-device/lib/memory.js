// What a device must never forget (M34 to M39, M88): one file, whole or not at all, on stable storage
// before anything drawn from it is sent; and a mark beside it, by which an older copy is noticed.

import {
  closeSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  realpathSync,
  renameSync,
  writeSync,
} from "node:fs";
import { createHash } from "node:crypto";
import { createServer } from "node:net";
import { join } from "node:path";

export class MemoryLost extends Error {}

/** One process at a time: two would draw twice. The lock is a socket's name in Linux's abstract space:
 * taken at once or not at all, and gone with the process, however it ends. */
function lock(folder) {
  const name = createHash("sha256").update(realpathSync(folder)).digest("hex");
  return new Promise((resolve, reject) => {
    const held = createServer().unref();
    held.once("error", () =>
      reject(new MemoryLost("another process uses this memory; nothing was drawn or sent")),
    );
    held.listen(`\0allomfree-device-${name}`, () => resolve(held));
  });
}

export class Memory {
  #folder;

  static async open(folder) {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    await lock(folder);
    return new Memory(folder);
  }

  constructor(folder) {
    this.#folder = folder;
    const mark = this.#read("mark.json");
    this.state = this.#read("memory.json");
    if (mark !== null && (this.state === null || this.state.version < mark.version)) {
      throw new MemoryLost(
        "the memory of this device is lost or older than it was; nothing was drawn or sent. " +
          "Restore it, or delete the whole directory to accept the loss: the next memo is charged again",
      );
    }
    this.state ??= { version: 0, campaign: null };
  }

  /** Change the state; when this returns, the change survives a loss of power. */
  change(update) {
    const next = structuredClone(this.state);
    update(next);
    next.version += 1;
    this.#write("memory.json", next); // a mark that is behind is allowed, one ahead is a loss
    this.#write("mark.json", { version: next.version });
    this.state = next;
  }

  #read(name) {
    try {
      return JSON.parse(readFileSync(join(this.#folder, name), "utf8"));
    } catch (error) {
      if (error.code === "ENOENT") return null;
      throw new MemoryLost(`${name} cannot be read (${error.code ?? error.name}); nothing was drawn`);
    }
  }

  #write(name, content) {
    const [path, fresh] = [join(this.#folder, name), join(this.#folder, `${name}.new`)];
    const file = openSync(fresh, "w", 0o600);
    writeSync(file, JSON.stringify(content));
    fsyncSync(file);
    closeSync(file);
    renameSync(fresh, path);
    const folder = openSync(this.#folder, "r");
    fsyncSync(folder); // the name, too
    closeSync(folder);
  }
}
