// `console`: lines of the log.

import { define, inspect, line, plain } from "heddle:runtime";

const { stringify } = JSON;
const { floor, trunc } = Math;
const { keys } = Object;
const toFloat = parseFloat;
const call = Function.prototype.call;
const mapGet = call.bind(Map.prototype.get);
const mapSet = call.bind(Map.prototype.set);
const NativeMap = Map;
const now = performance.now;

const numberOf = (value, read) => {
  if (typeof value === "bigint") return `${value}n`;
  return typeof value === "string" || typeof value === "number" ? `${read(value)}` : "NaN";
};

/// What stands for a value in the place of `%s` and the like; nothing, if the letter has no meaning.
const formatted = (letter, value) => {
  switch (letter) {
    case "s": case "o": case "O": return inspect(value);
    case "d": return numberOf(value, (plainly) => +plainly);
    case "i": return numberOf(value, (plainly) => trunc(toFloat(plainly)));
    case "f": return numberOf(value, toFloat);
    case "j":
      try {
        return `${stringify(value)}`;
      } catch {
        return "[unreadable]";
      }
    // (Colours and fonts.)
    case "c": return "";
    default: return undefined;
  }
};

/// Values as one text. In a first one that is text, `%s` and the like stand for the next ones, as in browsers and Node.js.
const format = (values) => {
  let text = "";
  let next = 0;
  if (typeof values[0] === "string" && values.length > 1) {
    const pattern = values[0];
    next = 1;
    for (let at = 0; at < pattern.length; at++) {
      const letter = pattern[at] === "%" ? pattern[at + 1] : undefined;
      const part = letter === "%" ? "%" : next < values.length ? formatted(letter, values[next]) : undefined;
      if (part === undefined) text += pattern[at];
      else {
        if (letter !== "%") next += 1;
        text += part;
        at += 1;
      }
    }
  }
  for (let at = next; at < values.length; at++) text += (at === 0 ? "" : " ") + inspect(values[at]);
  return text;
};

const write = (level, values) => line(level, format(values));
const LEVELS = plain({ trace: "0", debug: "1", log: "2", info: "2", warn: "3", error: "4" });
const logger = {};
for (const name of keys(LEVELS)) logger[name] = { [name](...values) { write(LEVELS[name], values); } }[name];
logger.dir = (value) => write("2", [value]);
logger.assert = (fine, ...values) => void (fine || write("4", ["assertion failed", ...values]));
const started = new NativeMap();
logger.time = (label = "default") => void mapSet(started, `${label}`, now());
logger.timeEnd = (label = "default") => {
  const since = mapGet(started, `${label}`);
  if (since !== undefined) write("2", [`${label}: ${floor((now() - since) * 1000) / 1000} ms`]);
};
const counted = new NativeMap();
logger.count = (label = "default") => {
  const count = (mapGet(counted, `${label}`) ?? 0) + 1;
  mapSet(counted, `${label}`, count);
  write("2", [`${label}: ${count}`]);
};
logger.group = (...values) => void (values.length > 0 && write("2", values));
logger.groupEnd = () => {};
logger.table = logger.dir;

define("console", logger);
