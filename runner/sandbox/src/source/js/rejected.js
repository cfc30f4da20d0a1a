// Promises that failed, and that nobody awaits: the log tells of them.
//
// `../rejected.rs` says how they get here. The array is what it finds in the interpreter's memory, by what it has at first.
// Later, it has the number of such promises, and then each of them with its reason.

import { done, list } from "heddle:runtime";
import "heddle:console";

const complain = console.error;

// These are those of `../rejected.rs`.
const FIRST = 0x48656400;
const PLACES = 64;

const rejected = list([]);
for (let at = 0; at <= 2 * PLACES; at++) rejected[at] = FIRST + at;

/// Writes them to the log, and forgets them.
export const tell = () => {
  const reasons = list([]);
  const count = rejected[0];
  for (let at = 0; at < count; at++) {
    reasons[at] = rejected[2 * at + 2];
    rejected[2 * at + 1] = rejected[2 * at + 2] = 0;
  }
  rejected[0] = 0;
  // (To write a reason may run code of the script, and fail further promises.)
  for (let at = 0; at < count; at++) complain("uncaught in a promise:", reasons[at]);
  return done;
};
