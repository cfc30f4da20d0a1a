// Compares how something is configured with how it should be, and tells each difference by its JSON Pointer (RFC 6901). A
// nightly run shows what somebody has changed by hand. With `strict`, a difference fails the task, so that people are told.

import { write as log } from "heddle:task/log@1.0.0";

const params = {
  $schema: "https://json-schema.org/draft/2020-12/schema",
  type: "object",
  required: ["wanted", "found"],
  properties: {
    wanted: { type: "object", description: "The configuration as it should be." },
    found: { type: "object", description: "The configuration as it is, for example the output of another task." },
    ignore: { type: "array", items: { type: "string" }, description: "Pointers to parts that may differ." },
    strict: { type: "boolean", description: "Whether a difference fails the task." },
  },
};

/** How many differences the output lists. */
const LISTED_MAX = 100;

const hasParts = (value) => typeof value === "object" && value !== null;

const part = (whole, name) => (Object.hasOwn(whole, name) ? whole[name] : undefined);

const escaped = (name) => String(name).replaceAll("~", "~0").replaceAll("/", "~1");

function names(wanted, found) {
  if (!Array.isArray(wanted)) return [...new Set([...Object.keys(wanted), ...Object.keys(found)])].sort();
  return Array.from({ length: Math.max(wanted.length, found.length) }, (_, index) => index);
}

/** Without `wanted`, a difference is a part that should not be there; without `found`, one that is missing. */
function* differences(wanted, found, at, ignored) {
  if (ignored.has(at)) return;
  if (hasParts(wanted) && hasParts(found) && Array.isArray(wanted) === Array.isArray(found)) {
    for (const name of names(wanted, found)) {
      yield* differences(part(wanted, name), part(found, name), `${at}/${escaped(name)}`, ignored);
    }
  } else if (wanted !== found) {
    yield { at, wanted, found };
  }
}

export function run(text) {
  const { wanted, found, ignore, strict } = JSON.parse(text);
  const all = [...differences(wanted, found, "", new Set(ignore))];
  const listed = all.slice(0, LISTED_MAX);
  log("info", `differences: ${all.length}`, JSON.stringify({ at: listed.map((one) => one.at) }));
  if (strict && all.length > 0) {
    const more = all.length > 1 ? ` and ${all.length - 1} more` : "";
    throw { tag: "fatal", val: `not as wanted: ${all[0].at}${more}` };
  }
  return JSON.stringify({ total: all.length, differences: listed });
}

export function describe() {
  const description = "Compares a configuration with the wanted one.";
  return JSON.stringify({ description, params, defaults: { ignore: [], strict: false } });
}
