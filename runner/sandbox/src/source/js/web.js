// What scripts know from browsers and Node.js: `fetch`, `URL`, `TextEncoder`, `crypto`, timers and `structuredClone`.
//
// Not here, because nothing of it would be true: streams, workers, storage, `Intl`.

import { because, cancel, define, list, onlyInRun, start, sync } from "heddle:runtime";
import "heddle:console";

const { stringify, parse } = JSON;
const { defineProperty, keys } = Object;
const { isArray } = Array;
const NativeUint8Array = Uint8Array;
const NativeArrayBuffer = ArrayBuffer;
const NativeMap = Map;
const NativePromise = Promise;
const { construct } = Reflect;

const bytesOf = (value) => {
  if (value instanceof NativeUint8Array) return value;
  if (NativeArrayBuffer.isView(value)) return new NativeUint8Array(value.buffer, value.byteOffset, value.byteLength);
  if (value instanceof NativeArrayBuffer) return new NativeUint8Array(value);
  return null;
};
const call = Function.prototype.call;
const toBase64 = call.bind(NativeUint8Array.prototype.toBase64);
const complain = console.error;
const mapGet = call.bind(NativeMap.prototype.get);
const mapSet = call.bind(NativeMap.prototype.set);
const mapDelete = call.bind(NativeMap.prototype.delete);
const then = call.bind(NativePromise.prototype.then);
const fromBase64 = NativeUint8Array.fromBase64.bind(NativeUint8Array);

// ---- Text and bytes ----------------------------------------------------------------------------------------------------

const encode = (text) => {
  const length = text.length;
  let bytes = new NativeUint8Array(length * 3);
  let at = 0;
  for (let index = 0; index < length; index++) {
    let code = text.charCodeAt(index);
    if (code < 0x80) {
      bytes[at++] = code;
      continue;
    }
    if (code >= 0xd800 && code <= 0xdfff) {
      const low = code < 0xdc00 && index + 1 < length ? text.charCodeAt(index + 1) : 0;
      if (low >= 0xdc00 && low <= 0xdfff) {
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        index += 1;
      } else code = 0xfffd;
    }
    if (code < 0x800) bytes[at++] = 0xc0 | (code >> 6);
    else {
      if (code < 0x10000) bytes[at++] = 0xe0 | (code >> 12);
      else {
        bytes[at++] = 0xf0 | (code >> 18);
        bytes[at++] = 0x80 | ((code >> 12) & 63);
      }
      bytes[at++] = 0x80 | ((code >> 6) & 63);
    }
    bytes[at++] = 0x80 | (code & 63);
  }
  return bytes.slice(0, at);
};

define("TextEncoder", class TextEncoder {
  get encoding() { return "utf-8"; }
  encode(text = "") { return encode(`${text}`); }
  encodeInto(text, into) {
    let [read, written] = [0, 0];
    for (const letter of `${text}`) {
      const bytes = encode(letter);
      if (written + bytes.length > into.length) break;
      into.set(bytes, written);
      written += bytes.length;
      read += letter.length;
    }
    return { read, written };
  }
});

/// What the host refuses, as an error of the kind that the Encoding Standard names.
const refusedAs = (Kind, work) => {
  try {
    return work();
  } catch (refused) {
    throw new Kind(refused.message);
  }
};

define("TextDecoder", class TextDecoder {
  #label;
  #fatal;
  #keepBom;
  #rest = new NativeUint8Array(0);
  constructor(label = "utf-8", options = {}) {
    this.#label = refusedAs(RangeError, () => sync("text.label", { label: `${label}` }));
    this.#fatal = !!options.fatal;
    this.#keepBom = !!options.ignoreBOM;
  }
  get encoding() { return this.#label; }
  get fatal() { return this.#fatal; }
  get ignoreBOM() { return this.#keepBom; }
  decode(input, options = {}) {
    let bytes = input === undefined ? new NativeUint8Array(0) : bytesOf(input);
    if (bytes === null) throw new TypeError("TextDecoder.decode takes bytes");
    if (this.#rest.length > 0) {
      const whole = new NativeUint8Array(this.#rest.length + bytes.length);
      whole.set(this.#rest);
      whole.set(bytes, this.#rest.length);
      bytes = whole;
      this.#rest = new NativeUint8Array(0);
    }
    if (options.stream) {
      // The beginning of a character waits for its end.
      let cut = bytes.length;
      for (let back = 1; back <= 3 && back <= bytes.length; back++) {
        const byte = bytes[bytes.length - back];
        if ((byte & 0xc0) === 0x80) continue;
        const needs = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
        if (needs > back) cut = bytes.length - back;
        break;
      }
      this.#rest = bytes.slice(cut);
      bytes = bytes.subarray(0, cut);
    }
    if (bytes.length === 0) return "";
    const fields = { label: this.#label, fatal: this.#fatal, bom: this.#keepBom, base64: toBase64(bytes) };
    return refusedAs(TypeError, () => sync("text.decode", fields));
  }
});

// ---- Addresses ---------------------------------------------------------------------------------------------------------

class URLSearchParams {
  #pairs = [];
  #url = null;
  constructor(init = "") {
    if (typeof init === "string" || init === null || (typeof init !== "object" && typeof init !== "function")) {
      this.#read(`${init}`);
    } else if (init instanceof URLSearchParams) {
      for (const [name, value] of init) this.#pairs.push([name, value]);
    } else if (typeof init[Symbol.iterator] === "function") {
      for (const pair of init) {
        const both = [...pair];
        if (both.length !== 2) throw new TypeError("each entry of URLSearchParams is a name and a value");
        this.#pairs.push([`${both[0]}`, `${both[1]}`]);
      }
    } else for (const name of keys(init)) this.#pairs.push([name, `${init[name]}`]);
  }
  #read(text) {
    this.#pairs = parse(sync("query.parse", { text: text[0] === "?" ? text.slice(1) : text }));
  }
  #changed() {
    if (this.#url !== null) this.#url(this.toString());
  }
  static of(text, changed) {
    const params = new URLSearchParams(text);
    params.#url = changed;
    return params;
  }
  static reread(params, text) { params.#read(text); }
  get size() { return this.#pairs.length; }
  append(name, value) { this.#pairs.push([`${name}`, `${value}`]); this.#changed(); }
  delete(name, value) {
    this.#pairs = this.#pairs.filter(([own, its]) => own !== `${name}` || (value !== undefined && its !== `${value}`));
    this.#changed();
  }
  get(name) { return this.#pairs.find(([own]) => own === `${name}`)?.[1] ?? null; }
  getAll(name) { return this.#pairs.filter(([own]) => own === `${name}`).map(([, value]) => value); }
  has(name, value) {
    return this.#pairs.some(([own, its]) => own === `${name}` && (value === undefined || its === `${value}`));
  }
  set(name, value) {
    const at = this.#pairs.findIndex(([own]) => own === `${name}`);
    if (at < 0) this.#pairs.push([`${name}`, `${value}`]);
    else this.#pairs = this.#pairs.filter(([own], index) => own !== `${name}` || index === at)
      .map((pair, index) => (index === at ? [`${name}`, `${value}`] : pair));
    this.#changed();
  }
  sort() { this.#pairs.sort(([one], [other]) => (one < other ? -1 : one > other ? 1 : 0)); this.#changed(); }
  forEach(work, self) { for (const [name, value] of this.#pairs) work.call(self, value, name, this); }
  *entries() { for (const [name, value] of this.#pairs) yield [name, value]; }
  *keys() { for (const [name] of this.#pairs) yield name; }
  *values() { for (const [, value] of this.#pairs) yield value; }
  [Symbol.iterator]() { return this.entries(); }
  toString() { return sync("query.write", { pairs: stringify(this.#pairs) }); }
  get [Symbol.toStringTag]() { return "URLSearchParams"; }
}
const searchParamsOf = URLSearchParams.of;
const rereadParams = URLSearchParams.reread;
delete URLSearchParams.of;
delete URLSearchParams.reread;
define("URLSearchParams", URLSearchParams);

class URL {
  #parts;
  #params;
  constructor(text, base) {
    this.#parts = sync("url.parse", { text: `${text}`, base: base === undefined ? null : `${base}` });
    if (this.#parts === null) throw new TypeError(`Invalid URL: ${text}`);
    this.#params = searchParamsOf(this.#parts.search, (search) => this.#set("search", search));
  }
  #set(part, value) {
    const parts = sync("url.set", { href: this.#parts.href, part, value: `${value}` });
    if (parts === null) {
      if (part === "href") throw new TypeError(`Invalid URL: ${value}`);
    } else this.#parts = parts;
  }
  static canParse(text, base) {
    return sync("url.parse", { text: `${text}`, base: base === undefined ? null : `${base}` }) !== null;
  }
  static parse(text, base) { return URL.canParse(text, base) ? new URL(text, base) : null; }
  get href() { return this.#parts.href; }
  set href(value) { this.#set("href", value); rereadParams(this.#params, this.#parts.search); }
  get origin() { return this.#parts.origin; }
  get protocol() { return this.#parts.protocol; }
  set protocol(value) { this.#set("protocol", value); }
  get username() { return this.#parts.username; }
  set username(value) { this.#set("username", value); }
  get password() { return this.#parts.password; }
  set password(value) { this.#set("password", value); }
  get host() { return this.#parts.host; }
  set host(value) { this.#set("host", value); }
  get hostname() { return this.#parts.hostname; }
  set hostname(value) { this.#set("hostname", value); }
  get port() { return this.#parts.port; }
  set port(value) { this.#set("port", value); }
  get pathname() { return this.#parts.pathname; }
  set pathname(value) { this.#set("pathname", value); }
  get search() { return this.#parts.search; }
  set search(value) { this.#set("search", value); rereadParams(this.#params, this.#parts.search); }
  get hash() { return this.#parts.hash; }
  set hash(value) { this.#set("hash", value); }
  get searchParams() { return this.#params; }
  toString() { return this.#parts.href; }
  toJSON() { return this.#parts.href; }
  get [Symbol.toStringTag]() { return "URL"; }
}
define("URL", URL);

// ---- Time --------------------------------------------------------------------------------------------------------------

const timers = new NativeMap();
let lastTimer = 0;
const delayOf = (delay) => {
  const ms = +delay;
  return ms > 0 ? (ms > 2147483647 ? 2147483647 : ms) : 0;
};
const arm = (timer, work, delay, repeat) => {
  const id = start("timer", { ms: delay }, () => {
    if (repeat) arm(timer, work, delay, true);
    else mapDelete(timers, timer);
    work();
  });
  mapSet(timers, timer, id);
};
const timerFor = (name, repeat) => (work, delay, ...args) => {
  onlyInRun(name);
  if (typeof work !== "function") throw new TypeError(`${name} takes a function`);
  lastTimer += 1;
  arm(lastTimer, () => guarded("timer", work, args), repeat && delayOf(delay) < 1 ? 1 : delayOf(delay), repeat);
  return lastTimer;
};
// What a callback throws has nobody to catch it: it is written to the log. So is what the promise of one that is async
// fails with.
const guarded = (what, work, args) => {
  const uncaught = (thrown) => complain(`uncaught in a ${what}:`, thrown);
  try {
    const given = work(...args);
    if (given instanceof NativePromise) then(given, undefined, uncaught);
  } catch (thrown) {
    uncaught(thrown);
  }
};
const clear = (timer) => {
  const id = mapGet(timers, timer);
  if (id !== undefined) {
    mapDelete(timers, timer);
    cancel(id);
  }
};
define("setTimeout", timerFor("setTimeout", false));
define("setInterval", timerFor("setInterval", true));
define("clearTimeout", clear);
define("clearInterval", clear);

// What these call would end the interpreter by what it throws.
const queue = globalThis.queueMicrotask;
define("queueMicrotask", function queueMicrotask(work) {
  if (typeof work !== "function") throw new TypeError("queueMicrotask takes a function");
  queue(() => guarded("microtask", work, []));
});
const NativeRegistry = FinalizationRegistry;
const Registry = function FinalizationRegistry(work) {
  if (new.target === undefined) throw new TypeError("FinalizationRegistry must be called with new");
  if (typeof work !== "function") throw new TypeError("FinalizationRegistry takes a function");
  return construct(NativeRegistry, [(held) => guarded("finalizer", work, [held])], new.target);
};
defineProperty(Registry, "prototype", { value: NativeRegistry.prototype, writable: false });
defineProperty(NativeRegistry.prototype, "constructor", { value: Registry, writable: true, configurable: true });
define("FinalizationRegistry", Registry);

// ---- Stopping ----------------------------------------------------------------------------------------------------------

const aborting = Symbol("abort");

class AbortSignal {
  #listeners = [];
  aborted = false;
  reason = undefined;
  onabort = null;
  [aborting](reason) {
    if (this.aborted) return;
    this.aborted = true;
    this.reason = reason === undefined ? new DOMException("This operation was aborted", "AbortError") : reason;
    const event = { type: "abort", target: this };
    for (const listener of [this.onabort, ...this.#listeners]) if (typeof listener === "function") listener.call(this, event);
    this.#listeners = [];
  }
  addEventListener(type, listener) { if (type === "abort") this.#listeners.push(listener); }
  removeEventListener(type, listener) { this.#listeners = this.#listeners.filter((own) => own !== listener); }
  throwIfAborted() { if (this.aborted) throw this.reason; }
  static abort(reason) {
    const signal = new AbortSignal();
    signal[aborting](reason);
    return signal;
  }
  static timeout(ms) {
    onlyInRun("AbortSignal.timeout");
    const signal = new AbortSignal();
    // (When `run` has its result, the script ends without it.)
    start("timer", { ms: delayOf(ms) }, () =>
      signal[aborting](new DOMException("The operation timed out", "TimeoutError")));
    return signal;
  }
  static any(signals) {
    const signal = new AbortSignal();
    for (const one of signals) {
      if (one.aborted) {
        signal[aborting](one.reason);
        break;
      }
      one.addEventListener("abort", () => signal[aborting](one.reason));
    }
    return signal;
  }
}
define("AbortSignal", AbortSignal);
define("AbortController", class AbortController {
  signal = new AbortSignal();
  abort(reason) { this.signal[aborting](reason); }
});

// ---- HTTP --------------------------------------------------------------------------------------------------------------

const nameOf = (name) => {
  const text = `${name}`.toLowerCase();
  if (!/^[!#$%&'*+\-.^_`|~0-9a-z]+$/.test(text)) throw new TypeError(`\`${name}\` is no name of a header`);
  return text;
};
const valueOf = (value) => {
  const text = `${value}`.trim();
  if (/[\0\r\n]/.test(text)) throw new TypeError("a header's value has no line breaks");
  return text;
};

class Headers {
  #map = new NativeMap();
  #cookies = [];
  constructor(init) {
    if (init === undefined || init === null) return;
    if (init instanceof Headers || typeof init[Symbol.iterator] === "function") {
      for (const [name, value] of init) this.append(name, value);
    } else for (const name of keys(init)) this.append(name, init[name]);
  }
  append(name, value) {
    const key = nameOf(name);
    if (key === "set-cookie") this.#cookies.push(valueOf(value));
    else this.#map.set(key, this.#map.has(key) ? `${this.#map.get(key)}, ${valueOf(value)}` : valueOf(value));
  }
  set(name, value) {
    const key = nameOf(name);
    if (key === "set-cookie") this.#cookies = [valueOf(value)];
    else this.#map.set(key, valueOf(value));
  }
  get(name) {
    const key = nameOf(name);
    if (key === "set-cookie") return this.#cookies.length > 0 ? this.#cookies.join(", ") : null;
    return this.#map.get(key) ?? null;
  }
  getSetCookie() { return [...this.#cookies]; }
  has(name) { return this.get(name) !== null; }
  delete(name) {
    if (nameOf(name) === "set-cookie") this.#cookies = [];
    else this.#map.delete(nameOf(name));
  }
  forEach(work, self) { for (const [name, value] of this) work.call(self, value, name, this); }
  *entries() {
    const all = [...this.#map, ...this.#cookies.map((cookie) => ["set-cookie", cookie])];
    yield* all.sort(([one], [other]) => (one < other ? -1 : one > other ? 1 : 0));
  }
  *keys() { for (const [name] of this) yield name; }
  *values() { for (const [, value] of this) yield value; }
  [Symbol.iterator]() { return this.entries(); }
}
define("Headers", Headers);

/// A body as `{text}` or `{bytes}`, and the type that it has if nobody says another.
const bodyOf = (body) => {
  if (body === undefined || body === null) return { text: null, bytes: null, type: null };
  if (body instanceof URLSearchParams) {
    return { text: body.toString(), bytes: null, type: "application/x-www-form-urlencoded;charset=UTF-8" };
  }
  const bytes = bytesOf(body);
  if (bytes !== null) return { text: null, bytes: bytes.slice(), type: null };
  return { text: `${body}`, bytes: null, type: "text/plain;charset=UTF-8" };
};

class Body {
  #body;
  #used = false;
  constructor(body) { this.#body = body; }
  get bodyUsed() { return this.#used; }
  get body() { return null; }
  #take() {
    if (this.#used) throw new TypeError("the body has been read already");
    this.#used = this.#body.text !== null || this.#body.bytes !== null;
    return this.#body;
  }
  async text() {
    const { text, bytes } = this.#take();
    return text ?? (bytes === null ? "" : new TextDecoder().decode(bytes));
  }
  async json() { return parse(await this.text()); }
  async bytes() {
    const { text, bytes } = this.#take();
    return bytes ?? encode(text ?? "");
  }
  async arrayBuffer() {
    const bytes = await this.bytes();
    return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  }
  static peek(one) { return one.#body; }
}
const peek = Body.peek;
delete Body.peek;

class Request extends Body {
  constructor(input, init = {}) {
    const from = input instanceof Request ? input : null;
    const given = init.body !== undefined && init.body !== null;
    const body = given || from === null ? bodyOf(init.body) : peek(from);
    super(body);
    const method = `${init.method ?? from?.method ?? "GET"}`;
    const upper = method.toUpperCase();
    this.method = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"].includes(upper) ? upper : method;
    if (given && (this.method === "GET" || this.method === "HEAD")) {
      throw new TypeError(`a ${this.method} request has no body`);
    }
    this.url = from === null ? new URL(input).href : from.url;
    this.headers = new Headers(init.headers ?? from?.headers);
    if (body.type !== null && !this.headers.has("content-type")) this.headers.set("content-type", body.type);
    this.redirect = `${init.redirect ?? from?.redirect ?? "follow"}`;
    if (!["follow", "manual", "error"].includes(this.redirect)) {
      throw new TypeError("`redirect` is `follow`, `manual` or `error`");
    }
    this.signal = init.signal ?? from?.signal ?? null;
  }
  clone() { return new Request(this); }
}
define("Request", Request);

class Response extends Body {
  constructor(body, init = {}) {
    const own = bodyOf(body);
    super(own);
    this.status = init.status ?? 200;
    this.statusText = `${init.statusText ?? ""}`;
    this.headers = new Headers(init.headers);
    if (own.type !== null && !this.headers.has("content-type")) this.headers.set("content-type", own.type);
    this.url = "";
    this.redirected = false;
    this.type = "default";
  }
  get ok() { return this.status >= 200 && this.status <= 299; }
  clone() {
    const { text, bytes } = peek(this);
    const copy = new Response(text ?? bytes, this);
    copy.url = this.url;
    copy.redirected = this.redirected;
    return copy;
  }
  static json(value, init = {}) {
    const headers = new Headers(init.headers);
    if (!headers.has("content-type")) headers.set("content-type", "application/json");
    return new Response(stringify(value), { ...init, headers });
  }
  static error() { throw new TypeError("Response.error is not available"); }
  static redirect(url, status = 302) { return new Response(null, { status, headers: { location: new URL(url).href } }); }
}
define("Response", Response);

const responseOf = (answer) => {
  const body = answer.text === null ? fromBase64(answer.base64) : answer.text;
  const response = new Response(body, { status: answer.status, statusText: answer.status_text });
  response.headers = new Headers(parse(answer.headers));
  response.url = answer.url;
  response.redirected = answer.redirected;
  response.type = "basic";
  return response;
};

define("fetch", function fetch(input, init) {
  return new Promise((resolve, reject) => {
    onlyInRun("fetch");
    const request = new Request(input, init);
    const { signal } = request;
    if (signal !== null && signal.aborted) throw signal.reason;
    const { text, bytes } = peek(request);
    const headers = [...request.headers].map((pair) => list(pair));
    const here = new TypeError();
    const id = start("fetch", {
      url: request.url,
      method: request.method,
      headers: list(headers),
      redirect: request.redirect,
      text,
      base64: bytes === null ? null : toBase64(bytes),
    }, (error, answer) => {
      if (error !== null) return reject(because(here, error));
      try {
        resolve(responseOf(answer));
      } catch (wrong) {
        reject(wrong);
      }
    });
    if (signal !== null) {
      signal.addEventListener("abort", () => {
        cancel(id);
        reject(signal.reason);
      });
    }
  });
});

// ---- Chance ------------------------------------------------------------------------------------------------------------

const randomBytes = (count) => {
  onlyInRun("crypto");
  return fromBase64(sync("random", { count }));
};
const hex = (byte) => (byte < 16 ? "0" : "") + byte.toString(16);
define("crypto", {
  getRandomValues(into) {
    const bytes = bytesOf(into);
    if (bytes === null || into instanceof Float32Array || into instanceof Float64Array) {
      throw new TypeError("crypto.getRandomValues fills an array of integers");
    }
    if (bytes.length > 65536) throw new DOMException("more than 65536 bytes at once", "QuotaExceededError");
    bytes.set(randomBytes(bytes.length));
    return into;
  },
  randomUUID() {
    const bytes = randomBytes(16);
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let text = "";
    for (let at = 0; at < 16; at++) text += (at === 4 || at === 6 || at === 8 || at === 10 ? "-" : "") + hex(bytes[at]);
    return text;
  },
});

// ---- Copies ------------------------------------------------------------------------------------------------------------

const notCloned = (value) => {
  throw new DOMException(`${typeof value === "object" ? "this object" : `a ${typeof value}`} cannot be cloned`, "DataCloneError");
};

const cloneOf = (value, seen) => {
  if (typeof value === "function" || typeof value === "symbol") return notCloned(value);
  if (typeof value !== "object" || value === null) return value;
  const known = seen.get(value);
  if (known !== undefined) return known;
  const keep = (copy) => {
    seen.set(value, copy);
    return copy;
  };
  if (isArray(value)) {
    const copy = keep(new Array(value.length));
    for (const key of keys(value)) copy[key] = cloneOf(value[key], seen);
    return copy;
  }
  if (value instanceof Date) return keep(new Date(value.getTime()));
  if (value instanceof RegExp) return keep(new RegExp(value.source, value.flags));
  if (value instanceof Map) {
    const copy = keep(new Map());
    for (const [key, item] of value) copy.set(cloneOf(key, seen), cloneOf(item, seen));
    return copy;
  }
  if (value instanceof Set) {
    const copy = keep(new Set());
    for (const item of value) copy.add(cloneOf(item, seen));
    return copy;
  }
  if (value instanceof NativeArrayBuffer) return keep(value.slice(0));
  if (value instanceof DataView) return keep(new DataView(value.buffer.slice(value.byteOffset, value.byteOffset + value.byteLength)));
  if (NativeArrayBuffer.isView(value)) return keep(value.slice());
  if (value instanceof Error) {
    const base = { EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError }[value.name] ?? Error;
    const copy = keep(new base(value.message));
    defineProperty(copy, "stack", { value: value.stack, writable: true, configurable: true });
    if ("cause" in value) copy.cause = cloneOf(value.cause, seen);
    return copy;
  }
  if (value instanceof Number || value instanceof String || value instanceof Boolean) return keep(Object(value.valueOf()));
  if (value instanceof WeakMap || value instanceof WeakSet || value instanceof WeakRef || value instanceof Promise) {
    return notCloned(value);
  }
  const copy = keep({});
  for (const key of keys(value)) copy[key] = cloneOf(value[key], seen);
  return copy;
};
define("structuredClone", function structuredClone(value) { return cloneOf(value, new NativeMap()); });

