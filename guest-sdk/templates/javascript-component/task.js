// {{name}}: a task script for Heddle.
//
// The imports are those of wit/task.wit.

import { get as context } from "heddle:task/context@1.0.0";
import { write as log } from "heddle:task/log@1.0.0";

const params = {
  $schema: "https://json-schema.org/draft/2020-12/schema",
  type: "object",
  properties: { name: { type: "string", description: "Who is greeted." } },
};

export function run(text) {
  const { name = "world" } = JSON.parse(text);
  if (name === "") {
    // "retryable" and "skip" likewise, "retry-after" with [milliseconds as a BigInt, message]; any other exception is
    // a trap.
    throw { tag: "fatal", val: "name is empty" };
  }
  const greeting = `Hello, ${name}!`;
  log("info", greeting, JSON.stringify({ attempt: context().attempt }));
  return JSON.stringify({ greeting });
}

export function describe() {
  return JSON.stringify({ description: "Greets somebody.", params, defaults: { name: "world" } });
}
