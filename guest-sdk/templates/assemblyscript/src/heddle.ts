// What a Heddle task in AssemblyScript is given, and how it ends. This file is yours: change it as you like.
//
//     main<Params, Output>((task: Task, params: Params): Output => { ... });
//
// `Params` and `Output` are classes marked `@json` (or numbers, strings, arrays, maps). `fail` fails the attempt, and the
// task's retry policy decides whether there is another; so does `throw`, whose message is told with its place.
import { JSON } from "json-as";

@json
export class Interval {
  start: string = "";
  end: string = "";
}

/** One item of a mapped task. */
@json
export class Item {
  item: JSON.Raw = new JSON.Raw("null");
  /** From 0. */
  index: i32 = 0;
  /** How many items the mapped task has. */
  count: i32 = 0;
}

/** One attempt at a task: who is running, and for what. Times are RFC 3339, in UTC. */
@json
export class Task {
  run: string = "";
  group: string = "";
  task: string = "";
  /** From 1. */
  attempt: i32 = 1;
  /** "manual", "schedule", "backfill", "upstream", "task" or "rerun". */
  trigger: string = "manual";
  logical_time: string = "";
  data_interval: Interval = new Interval();
  /** When this attempt will be stopped. */
  deadline: string | null = null;
  /** Set in a mapped task. */
  item: Item | null = null;
  /** The same for every attempt of this task run, and for no other. */
  idempotency_key: string = "";
}

/** Runs the task: params come from standard input, the output goes to standard output, both as JSON. */
export function main<P, O>(run: (task: Task, params: P) => O): void {
  const context = process.env.has("HEDDLE_CONTEXT") ? process.env.get("HEDDLE_CONTEXT") : "{}";
  const output = run(JSON.parse<Task>(context), JSON.parse<P>(input()));
  process.stdout.write(JSON.stringify<O>(output) + "\n");
}

/** A line of the log. */
export function log(message: string): void {
  process.stderr.write(message + "\n");
}

/** Ends the attempt as failed, with this message. */
export function fail(message: string): void {
  log(message);
  process.exit(1);
}

/** All of standard input. */
function input(): string {
  let bytes = new ArrayBuffer(4096);
  let used = 0;
  for (;;) {
    const more = process.stdin.read(bytes, used);
    if (more <= 0) break;
    used += more;
    if (used == bytes.byteLength) {
      const larger = new ArrayBuffer(used * 2);
      memory.copy(changetype<usize>(larger), changetype<usize>(bytes), used);
      bytes = larger;
    }
  }
  return used == 0 ? "{}" : String.UTF8.decodeUnsafe(changetype<usize>(bytes), used);
}
