// What the programs for Node are told and what they say: the same as in __init__.py, which explains it.

import { writeSync } from "node:fs";
import { createInterface } from "node:readline";

const CHUNK = 1000;

export const [role, url] = process.argv.slice(2);

// What a handler does, all of it.
export function began(number) {
  say("began", number, process.hrtime.bigint());
}

// Have a worker ended when its input ends, also when whoever started it was killed.
export function leaveWithTheInput(stop) {
  process.stdin.on("end", async () => {
    await stop();
    process.exit(0);
  });
  process.stdin.resume();
}

// Do what each line says with a program's calls: for one job, for many, and for how many are left.
export async function listen({ one, many, left }) {
  for await (const line of createInterface({ input: process.stdin })) {
    const [what, count] = line.split(" ");
    const start = process.hrtime.bigint();
    if (what === "single") {
      for (let number = 0; number < Number(count); number++) await one(number);
      say("single", count, process.hrtime.bigint() - start);
    } else if (what === "bulk") {
      for (let first = 0; first < Number(count); first += CHUNK) await many(numbers(first, Number(count)));
      say("bulk", count, process.hrtime.bigint() - start);
    } else if (what === "left") {
      say("left", await left(), process.hrtime.bigint());
    } else {
      await one(Number(what));
      say("submitted", what, start);
    }
  }
}

function numbers(first, count) {
  return Array.from({ length: Math.min(CHUNK, count - first) }, (_, i) => first + i);
}

function say(what, number, ns) {
  // One write, so that the lines of two processes in one file stay whole.
  writeSync(1, `${what} ${number} ${ns}\n`);
}
