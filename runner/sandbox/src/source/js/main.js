import { begin, bind, describe, event as answered, refuse } from "heddle:runtime";
import { tell } from "heddle:rejected";
import "heddle:web";

try {
  bind(await import("heddle:script"));
} catch (thrown) {
  refuse(thrown);
}

/// The host tells of an answer, or, with an empty text, of promises that have failed.
const event = (text) => (text === "" ? tell() : answered(text));

export { begin, describe, event };
