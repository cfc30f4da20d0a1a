// What stands between Heddle and a script written as text: how it is called, how it ends, and what `ctx` is.
//
// A script may overwrite anything that it can reach (`JSON.stringify`, `Object.prototype`, `Promise.prototype.then`), so
// this module keeps what it needs before the script is evaluated, and writes messages as objects without a prototype.

const host = globalThis.heddleHost;
delete globalThis.heddleHost;

const { stringify, parse } = JSON;
const { create, defineProperty, freeze, getPrototypeOf, setPrototypeOf } = Object;
const { isArray } = Array;
const { floor } = Math;
const call = Function.prototype.call;
const uncurry = (method) => call.bind(method);
const slice = uncurry(String.prototype.slice);
const wellFormed = uncurry(String.prototype.toWellFormed);
const objectToString = uncurry(Object.prototype.toString);
const mapGet = uncurry(Map.prototype.get);
const mapSet = uncurry(Map.prototype.set);
const mapDelete = uncurry(Map.prototype.delete);
const dateToISO = uncurry(Date.prototype.toISOString);
const regexpToString = uncurry(RegExp.prototype.toString);
const NativePromise = Promise;
const NativeMap = Map;
const NativeDate = Date;
const TypeErr = TypeError;
const RangeErr = RangeError;
const Err = Error;
const MAX_SAFE = Number.MAX_SAFE_INTEGER;
const toBigInt = BigInt;
const nativeNow = performance.now.bind(performance);

// What the host does. The numbers are those of `calls.rs`.
const LOG = 0;
const RESULT = 1;
const SYNC = 2;
const START = 3;
const CANCEL = 4;
const DESCRIPTION = 5;
const NESTING = 6;

/// An object that no prototype can add a `toJSON` to.
export const plain = (fields) => setPrototypeOf(fields, null);
/// The same of an array. What is put into it goes past no setter.
export const list = (items) => setPrototypeOf(items, null);

/// A message as JSON: of what is plain all the way down. The engine's own writer keeps the objects that it is in in an
/// array, and so has `Array.prototype`, with whatever a script put on it, take part.
const written = (value) => {
  if (typeof value !== "object" || value === null) return value === undefined ? "null" : stringify(value);
  const isList = isArray(value);
  let text = isList ? "[" : "{";
  let count = 0;
  // (An array's names are its indices: without a prototype there are no others.)
  for (const name in value) {
    if (count > 0) text += ",";
    if (!isList) text += `${stringify(name)}:`;
    text += written(value[name]);
    count += 1;
  }
  text += isList ? "]" : "}";
  return text;
};

// Interpreting text is off: what runs is what was checked.
const forbid = (what) => {
  throw new EvalError(`${what} is not available in scripts`);
};
for (const make of [function () {}, async function () {}, function* () {}, async function* () {}]) {
  const prototype = getPrototypeOf(make);
  const name = prototype.constructor.name;
  const constructor = { [name]: function () { return forbid(`new ${name}`); } }[name];
  defineProperty(constructor, "prototype", { value: prototype, writable: false });
  defineProperty(prototype, "constructor", { value: constructor, writable: true, configurable: true });
  if (name === "Function") defineProperty(globalThis, "Function", { value: constructor, writable: true, configurable: true });
}
defineProperty(globalThis, "eval", { value: function eval_() { return forbid("eval"); }, writable: true, configurable: true });

// The engine's parser of JSON recurses without looking at its stack: what nests too deep would end in a trap.
const MAX_NESTING = 2000;
// What is longer may not fit into one call of the host, and does not fit into most scripts' memory.
const MAX_LOOKED_AT = 10_000_000;
defineProperty(JSON, "parse", {
  value: {
    parse(text, reviver) {
      const whole = `${text}`;
      if (whole.length > MAX_NESTING && whole.length < MAX_LOOKED_AT && +host(NESTING, wellFormed(whole)) > MAX_NESTING) {
        throw new RangeErr(`JSON may nest ${MAX_NESTING} deep, and this nests deeper`);
      }
      return parse(whole, reviver);
    },
  }.parse,
  writable: true, configurable: true, enumerable: false,
});

const collect = globalThis.__cqjs.runGc;

// The engine's own door: it is looked up by name at each call, so nobody may take its place.
freeze(globalThis.__cqjs.asyncExports);
defineProperty(globalThis, "__cqjs", { value: globalThis.__cqjs, writable: false, enumerable: false, configurable: false });

let running = false;

/// Fails while the module's top level is evaluated: what it would do is done once, at upload, and never again.
export const onlyInRun = (what) => {
  if (!running) throw new Err(`${what} is not available while the module is loaded: call it in \`run\``);
};

// ---- Calls that the host answers -------------------------------------------------------------------------------------

/// A call that is answered at once.
export const sync = (op, fields) => {
  const message = plain({ ...fields });
  message.op = op;
  const answer = parse(host(SYNC, written(message)));
  if (answer.error !== null) throw new Err(answer.error);
  return answer.ok;
};

let lastId = 0;
const waiting = new NativeMap();

/// A call that takes time. `settle` gets the error (or null) and the answer.
export const start = (op, fields, settle) => {
  lastId += 1;
  const id = lastId;
  const message = plain({ ...fields });
  message.op = op;
  message.id = id;
  const refused = host(START, written(message));
  if (refused !== "") throw new Err(refused);
  mapSet(waiting, id, settle);
  return id;
};

/// An error that was made where the script called, whose stack names that place, with what went wrong since.
export const because = (error, message) => {
  defineProperty(error, "message", { value: message, writable: true, configurable: true });
  return error;
};

/// A call that takes time, as a promise. `fieldsOf` makes what is sent: what it throws, the promise fails with.
export const later = (op, fieldsOf, convert) =>
  new NativePromise((resolve, reject) => {
    onlyInRun(op);
    const here = new Err();
    start(op, fieldsOf(), (error, ok) => {
      if (error !== null) return reject(because(here, error));
      try {
        resolve(convert === undefined ? ok : convert(ok));
      } catch (wrong) {
        reject(wrong);
      }
    });
  });

/// Forgets a call. Its answer is dropped.
export const cancel = (id) => {
  if (mapDelete(waiting, id)) host(CANCEL, `${id}`);
};

/// The host tells of an answer: `{id, error, ok}`.
export function event(text) {
  try {
    const answer = parse(text);
    const settle = mapGet(waiting, answer.id);
    if (settle !== undefined) {
      mapDelete(waiting, answer.id);
      settle(answer.error, answer.ok);
    }
  } catch (thrown) {
    // A script that has overwritten what stands between: nobody else would hear of it.
    end(failure(thrown));
  }
  return done;
}

// ---- How a script may end ----------------------------------------------------------------------------------------------

const brand = (error, name) => {
  defineProperty(error, "name", { value: name, writable: true, configurable: true });
  return error;
};

/// Will never go better: not retried.
export class Fatal extends Err {
  #kind = "fatal";
  constructor(message, options) {
    super(message, options);
    brand(this, "Fatal");
  }
  static is(error) {
    return #kind in error;
  }
}

/// May go better, not before `after` has passed: milliseconds, or a text like "90s".
export class Retry extends Err {
  #after;
  constructor(message, after, options) {
    super(message, options);
    brand(this, "Retry");
    this.#after = after === undefined || after === null ? null : milliseconds(after);
  }
  static is(error) {
    return #after in error;
  }
  static after(error) {
    return error.#after;
  }
}

/// There is nothing to do: the task run ends `skipped`.
export class Skip extends Err {
  #kind = "skip";
  constructor(message, options) {
    super(message, options);
    brand(this, "Skip");
  }
  static is(error) {
    return #kind in error;
  }
}

const isFatal = Fatal.is;
const isRetry = Retry.is;
const retryAfter = Retry.after;
const isSkip = Skip.is;
for (const kind of [Fatal, Retry, Skip]) {
  delete kind.is;
  delete kind.after;
}

const UNITS = plain({ ms: 1, s: 1000, m: 60000, h: 3600000, d: 86400000 });

const milliseconds = (after) => {
  if (typeof after === "number" && after >= 0 && after < 1e15) return floor(after);
  if (typeof after === "string" && after !== "") {
    let total = 0;
    let digits = "";
    let unit = "";
    const take = () => {
      if (digits === "" || !(unit in UNITS)) return false;
      total += +digits * UNITS[unit];
      digits = unit = "";
      return true;
    };
    let fine = true;
    for (let at = 0; at < after.length; at++) {
      const letter = after[at];
      if (letter >= "0" && letter <= "9") {
        if (unit !== "") fine = take() && fine;
        digits += letter;
      } else unit += letter;
    }
    if (take() && fine) return total;
  }
  throw new TypeErr(`\`after\` is a number of milliseconds or a duration like "90s", not ${inspect(after)}`);
};

/// A text from whatever was thrown, without trusting it.
const textOf = (value) => {
  try {
    return wellFormed(typeof value === "string" ? value : `${value}`);
  } catch {
    return "(an error without a readable message)";
  }
};

const propertyOf = (value, name) => {
  try {
    return value[name];
  } catch {
    return undefined;
  }
};

const isObject = (value) => (typeof value === "object" && value !== null) || typeof value === "function";

/// An error in a line.
const short = (error) => {
  if (!isObject(error)) return wellFormed(inspect(error));
  return `${textOf(propertyOf(error, "name") ?? "Error")}: ${textOf(propertyOf(error, "message") ?? "")}`;
};

/// What stands behind an error, as a part of its trace.
const behind = (label, error) =>
  `\n${label}: ${short(error)}${isObject(error) ? `\n${textOf(propertyOf(error, "stack") ?? "")}` : ""}`;

/// The first errors of an `AggregateError`, which seldom has a message.
const errorsOf = (thrown) => {
  const found = list([]);
  try {
    const { errors } = thrown;
    if (isArray(errors)) for (let at = 0; at < 5 && at < errors.length; at++) found[at] = errors[at];
  } catch {
    // What cannot be read is left out.
  }
  return found;
};

/// `{message, trace}` of what was thrown.
const told = (thrown) => {
  if (!isObject(thrown)) return plain({ message: typeof thrown === "string" ? wellFormed(thrown) : `threw ${wellFormed(inspect(thrown))}`, trace: null });
  const message = propertyOf(thrown, "message");
  const stack = propertyOf(thrown, "stack");
  if (message === undefined && typeof stack !== "string") return plain({ message: `threw ${wellFormed(inspect(thrown))}`, trace: null });
  const name = textOf(propertyOf(thrown, "name") ?? "Error");
  const errors = errorsOf(thrown);
  let text = textOf(message ?? "");
  if (text === "" && errors.length > 0) text = `the first error is ${short(errors[0])}`;
  const own = isFatal(thrown) || isRetry(thrown) || isSkip(thrown) || name === "Error";
  const whole = own && text !== "" ? text : text === "" ? name : `${name}: ${text}`;
  let trace = `${text === "" ? name : `${name}: ${text}`}\n${typeof stack === "string" ? wellFormed(stack) : ""}`;
  let cause = propertyOf(thrown, "cause");
  for (let depth = 0; depth < 5 && isObject(cause); depth++) {
    trace += behind("Caused by", cause);
    cause = propertyOf(cause, "cause");
  }
  for (let at = 0; at < errors.length; at++) trace += behind(`Error ${at + 1}`, errors[at]);
  return plain({ message: whole, trace });
};

/// `{kind, message, trace, after}` of what was thrown.
const failure = (thrown) => {
  const said = told(thrown);
  said.kind = "failed";
  said.after = null;
  if (isObject(thrown)) {
    if (isFatal(thrown)) said.kind = "fatal";
    else if (isSkip(thrown)) said.kind = "skip";
    else if (isRetry(thrown)) said.after = retryAfter(thrown);
  }
  return said;
};

const invalid = (message) => plain({ kind: "invalid", message, trace: null, after: null });

const end = (outcome) => {
  if (!running) return;
  const text = written(outcome);
  running = false;
  host(RESULT, text);
};

let isData = false;
const unready = {
  toJSON() {
    if (isData) throw new TypeErr("a promise is not JSON: `await` it first");
    return { ...this };
  },
};
defineProperty(NativePromise.prototype, "toJSON", { value: unready.toJSON, writable: true, configurable: true, enumerable: false });

/// A value that Heddle takes as data, as JSON. To it, a promise is a forgotten `await`; elsewhere it stays `{}`.
const dataOf = (value) => {
  const before = isData;
  isData = true;
  try {
    return stringify(value);
  } finally {
    isData = before;
  }
};

/// The output as JSON. What JSON has no word for fails, but for `undefined` (null) and what JSON writes as null.
const outputOf = (value) => {
  if (value === undefined) return plain({ output: "null" });
  const kind = typeof value;
  if (kind === "function" || kind === "symbol") return invalid(`the output is a ${kind}, which is not JSON`);
  if (kind === "object" && value !== null) {
    const tag = objectToString(value);
    if (tag === "[object Generator]" || tag === "[object AsyncGenerator]") {
      return invalid("the output is a generator: `run` must be `function` or `async function`, not `function*`");
    }
  }
  let output;
  // The engine's writer recurses without looking at its stack: the host hears what it is that nests too deep.
  host(NESTING, "");
  try {
    output = dataOf(value);
  } catch (wrong) {
    return invalid(`the output cannot be written as JSON: ${told(wrong).message}`);
  }
  if (typeof output !== "string") return invalid("the output's `toJSON` gives what is not JSON");
  return plain({ output });
};

// ---- Running -----------------------------------------------------------------------------------------------------------

/// What an exported function gives back to the engine, which asks for a promise.
export const done = plain({ then() {} });

let script = plain({});

/// The module of the script.
export function bind(module) {
  script = module;
}

/// The module could not be evaluated.
export function refuse(thrown) {
  const { message, trace } = told(thrown);
  host(DESCRIPTION, written(plain({ error: message, trace })));
}

const entryOf = () => {
  const own = script.default;
  if (typeof own === "function") return own;
  if (isObject(own) && typeof own.run === "function") return own.run;
  return typeof script.run === "function" ? script.run : undefined;
};

/// The exports in which a script says something of itself.
const TOLD = plain({ description: 0, params: 0, defaults: 0 });

/// What the script says of itself.
export function describe() {
  let text;
  try {
    const facts = written(plain({ run: entryOf() !== undefined, handle: typeof script.handle === "function" }));
    text = slice(facts, 0, -1);
    for (const name in TOLD) {
      const own = script[name];
      text += `,"${name}":${own === undefined ? "null" : stringify(own) ?? "null"}`;
    }
    text += "}";
  } catch (wrong) {
    text = written(plain({ error: `\`params\`, \`defaults\` and \`description\` must be JSON: ${told(wrong).message}` }));
  }
  // What is garbage now would be part of every run.
  collect();
  host(DESCRIPTION, wellFormed(text));
  return done;
}

/// Begins an attempt: `{seed, now, context, params}`, or `{…, batch}` for a consumer.
export function begin(text) {
  running = true;
  const given = parse(text);
  seed(given.seed);
  clockStart = nativeNow();
  // It ends by itself, however `run` does, and throws nothing.
  work(given);
  return done;
}

const work = async (given) => {
  try {
    const ctx = contextOf(given.context);
    if (given.batch !== null) {
      const batch = given.batch;
      for (let at = 0; at < batch.messages.length; at++) {
        const message = batch.messages[at];
        message.sender = exact(message.sender);
        message.receiver = exact(message.receiver);
      }
      return end(handled(await script.handle(batch, ctx), batch));
    }
    const run = entryOf();
    end(outputOf(await run(given.params, ctx)));
  } catch (thrown) {
    end(failure(thrown));
  }
};

/// An id as a number, or as a BigInt where a number would be another.
const exact = (text) => (+text <= MAX_SAFE ? +text : toBigInt(text));

/// What became of each message: nothing said, all are handled; else a list with an entry for each, an error for those
/// that failed.
const handled = (said, batch) => {
  const outcomes = list([]);
  if (said !== undefined && said !== null) {
    if (!isArray(said) || said.length !== batch.messages.length) {
      return invalid("`handle` gives nothing, or an array with an entry for each message");
    }
    for (let at = 0; at < said.length; at++) outcomes[at] = said[at] instanceof Err ? failure(said[at]) : null;
    return plain({ outcomes });
  }
  for (let at = 0; at < batch.messages.length; at++) outcomes[at] = null;
  return plain({ outcomes });
};

const jsonOf = (value, what, write = dataOf) => {
  const text = write(value === undefined ? null : value);
  if (typeof text !== "string") throw new TypeErr(`${what} is not JSON`);
  return text;
};

/// A name or a key that a script gives, as text: numbers are keys, too. An object would be the same text as any other.
const nameOf = (value, what) => {
  if (typeof value === "string") return value;
  if (typeof value === "number" || typeof value === "bigint") return `${value}`;
  throw new TypeErr(`${what} is text, not ${inspect(value)}`);
};

/// A text that people read, of anything that has a text of its own.
const proseOf = (value, what) => {
  const text = `${value}`;
  if (isObject(value) && text === objectToString(value)) throw new TypeErr(`${what} is text, not ${inspect(value)}`);
  return text;
};

/// A version of a key of the state, or null for a key that must not exist. Nothing else means that.
const versionOf = (expected) => {
  if (expected === null) return null;
  if (typeof expected === "number" && expected >= 0 && expected <= MAX_SAFE && floor(expected) === expected) return expected;
  throw new TypeErr(`the version is the number that \`state.entry\` gave, or null for a key that must not exist, not ${inspect(expected)}`);
};

/// What a synchronous call gives, as a promise, so that all of `ctx` can be awaited alike.
const promised = (work) =>
  new NativePromise((resolve) => {
    resolve(work());
  });

const stateKey = (key) => ({ key: nameOf(key, "a key of the state") });

const contextOf = (context) => {
  const { item } = context;
  const ctx = {
    run: context.run,
    group: context.group,
    task: context.task,
    attempt: context.attempt,
    trigger: context.trigger,
    logicalTime: context.logical_time,
    dataInterval: freeze({ start: context.data_interval.start, end: context.data_interval.end }),
    deadline: context.deadline ?? null,
    item: item === null || item === undefined ? undefined : item.item,
    index: item === null || item === undefined ? undefined : item.index,
    count: item === null || item === undefined ? undefined : item.count,
    idempotencyKey: context.idempotency_key,
    upstream: (task) => later("upstream", () => ({ task: nameOf(task, "the name of a task") }), parse),
    secret: (name) => later("secret", () => ({ name: nameOf(name, "the name of a secret") })),
    state: freeze({
      get: (key) => later("state.get", () => stateKey(key), (entry) => (entry === null ? null : parse(entry.value))),
      entry: (key) =>
        later("state.get", () => stateKey(key), (entry) =>
          entry === null ? null : { value: parse(entry.value), version: entry.version }),
      set: (key, value) =>
        promised(() => void sync("state.set", { ...stateKey(key), value: jsonOf(value, "a state value") })),
      delete: (key) => promised(() => void sync("state.delete", stateKey(key))),
      compareAndSet: (key, expected, value) =>
        later("state.compareAndSet", () => ({
          ...stateKey(key),
          expected: versionOf(expected),
          value: jsonOf(value, "a state value"),
        }), () => undefined),
    }),
    sql: (given) => {
      const connection = nameOf(given, "the name of a connection");
      const send = (op) => (statement, ...params) =>
        later(op, () => ({
          connection,
          statement: nameOf(statement, "a statement"),
          params: jsonOf(params.length === 1 && isArray(params[0]) ? params[0] : params, "a statement's parameters"),
        }), op === "sql.query" ? parse : undefined);
      return freeze({ query: send("sql.query"), execute: send("sql.execute") });
    },
    enqueue: (group, params, key) =>
      promised(() =>
        void sync("enqueue", {
          group: nameOf(group, "the name of a group"),
          params: jsonOf(params ?? {}, "`params`"),
          key: key === undefined || key === null ? null : nameOf(key, "`key`"),
        })),
    notify: (channel, subject, body) =>
      promised(() =>
        void sync("notify", {
          channel: nameOf(channel, "the name of a channel"),
          subject: proseOf(subject, "`subject`"),
          body: body === undefined ? "" : proseOf(body, "`body`"),
        })),
    log: (level, message, fields) =>
      void sync("log", {
        level: nameOf(level, "the level"),
        message: wellFormed(inspect(message)),
        fields: fields === undefined || fields === null ? null : jsonOf(fields, "`fields`", stringify),
      }),
    progress: (fraction, note) =>
      void sync("progress", { fraction: +fraction, note: note === undefined ? "" : proseOf(note, "`note`") }),
  };
  return freeze(ctx);
};

// ---- Chance and time ---------------------------------------------------------------------------------------------------

// sfc32. The engine's own generator is part of the snapshot: it would give every run the same numbers.
let a = 0x9e3779b9;
let b = 0x243f6a88;
let c = 0xb7e15162;
let d = 1;
const next32 = () => {
  const sum = (a + b + d) | 0;
  d = (d + 1) | 0;
  a = b ^ (b >>> 9);
  b = (c + (c << 3)) | 0;
  c = (c << 21) | (c >>> 11);
  c = (c + sum) | 0;
  return sum >>> 0;
};
const seed = (words) => {
  // (No destructuring: a script may have overwritten how arrays are gone through.)
  a = words[0] | 0;
  b = words[1] | 0;
  c = words[2] | 0;
  d = words[3] | 0;
  for (let round = 0; round < 12; round++) next32();
};
const random = { random() { return ((next32() >>> 5) * 67108864 + (next32() >>> 6)) / 9007199254740992; } }.random;
defineProperty(Math, "random", { value: random, writable: true, configurable: true, enumerable: false });

let clockStart = nativeNow();
defineProperty(globalThis, "performance", {
  value: {
    now() { return nativeNow() - clockStart; },
    get timeOrigin() { return NativeDate.now() - (nativeNow() - clockStart); },
  },
  writable: true, configurable: true, enumerable: false,
});

// ---- The log -----------------------------------------------------------------------------------------------------------

const MAX_DEPTH = 4;
const MAX_ITEMS = 100;

/// A value as people read it.
export const inspect = (value, depth = 0, seen = []) => {
  switch (typeof value) {
    case "string": return depth === 0 ? value : stringify(value);
    case "bigint": return `${value}n`;
    case "symbol": return textOf(symbolText(value));
    case "function": return `[function ${textOf(propertyOf(value, "name") || "anonymous")}]`;
    case "object": break;
    default: return `${value}`;
  }
  if (value === null) return "null";
  for (let at = 0; at < seen.length; at++) if (seen[at] === value) return "[circular]";
  try {
    return inspectObject(value, depth, seen);
  } catch {
    return "[unreadable]";
  }
};

const symbolText = uncurry(Symbol.prototype.toString);
const KEYS = Object.keys;
const setForEach = uncurry(Set.prototype.forEach);
const mapForEach = uncurry(Map.prototype.forEach);

const inspectObject = (value, depth, seen) => {
  const tag = objectToString(value);
  if (value instanceof Err) {
    const { message, trace } = told(value);
    return depth === 0 && trace !== null ? shortTrace(trace) : `[${message}]`;
  }
  if (value instanceof NativeDate) return dateToISO(value);
  if (tag === "[object RegExp]") return regexpToString(value);
  if (depth >= MAX_DEPTH) return isArray(value) ? "[…]" : "{…}";
  const path = list([]);
  for (let at = 0; at < seen.length; at++) path[at] = seen[at];
  path[seen.length] = value;
  const inner = (item) => inspect(item, depth + 1, path);
  let text = "";
  let count = 0;
  const add = (part) => {
    if (count < MAX_ITEMS) text += (count === 0 ? "" : ", ") + part();
    count += 1;
  };
  const rest = () => (count > MAX_ITEMS ? `, … ${count - MAX_ITEMS} more` : "");
  if (isArray(value) || ArrayBuffer.isView(value) && tag !== "[object DataView]") {
    for (let at = 0; at < value.length && count <= MAX_ITEMS; at++) add(() => inner(value[at]));
    count = value.length;
    return `${isArray(value) ? "" : `${slice(tag, 8, -1)} `}[${text}${rest()}]`;
  }
  if (value instanceof NativeMap) {
    mapForEach(value, (item, key) => add(() => `${inner(key)} => ${inner(item)}`));
    return `Map {${text}${rest()}}`;
  }
  if (value instanceof Set) {
    setForEach(value, (item) => add(() => inner(item)));
    return `Set {${text}${rest()}}`;
  }
  const keys = KEYS(value);
  for (let at = 0; at < keys.length && count <= MAX_ITEMS; at++) {
    add(() => `${plainKey(keys[at]) ? keys[at] : stringify(keys[at])}: ${inner(value[keys[at]])}`);
  }
  count = keys.length;
  const name = tag === "[object Object]" ? "" : `${slice(tag, 8, -1)} `;
  return `${name}{${text === "" ? "" : ` ${text}${rest()} `}}`;
};

const plainKey = (key) => {
  for (let at = 0; at < key.length; at++) {
    const letter = key[at];
    const fine = (letter >= "a" && letter <= "z") || (letter >= "A" && letter <= "Z") || letter === "_" || letter === "$"
      || (at > 0 && letter >= "0" && letter <= "9");
    if (!fine) return false;
  }
  return key !== "";
};

/// A trace without the lines of this module.
const shortTrace = (trace) => {
  let text = "";
  let line = "";
  const put = () => {
    let own = false;
    for (let at = 0; at + 7 <= line.length; at++) if (slice(line, at, at + 7) === "heddle:") own = true;
    if (!own && line !== "") text += (text === "" ? "" : "\n") + line;
    line = "";
  };
  for (let at = 0; at < trace.length; at++) {
    if (trace[at] === "\n") put();
    else line += trace[at];
  }
  put();
  return text;
};

/// Writes a line. The level is its digit in `calls.rs`.
export const line = (level, text) => void host(LOG, wellFormed(level + text));

export const define = (name, value) =>
  defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });

define("Fatal", Fatal);
define("Retry", Retry);
define("Skip", Skip);
