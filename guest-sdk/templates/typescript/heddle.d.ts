// What a script that is text finds beside the web's `fetch`, `URL`, `crypto`, timers and so on.

type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

declare module "heddle:task" {
  export interface Context {
    readonly run: string;
    readonly group: string;
    readonly task: string;
    /** From 1. */
    readonly attempt: number;
    readonly trigger: "manual" | "schedule" | "backfill" | "upstream" | "task" | "rerun";
    /** RFC 3339, in UTC. */
    readonly logicalTime: string;
    readonly dataInterval: { readonly start: string; readonly end: string };
    /** When this attempt will be stopped. */
    readonly deadline: string | null;
    /** Of a mapped task: the item, its place, and how many there are. */
    readonly item?: any;
    readonly index?: number;
    readonly count?: number;
    /** The same for every attempt of this task run, and for no other. */
    readonly idempotencyKey: string;
    /** The output of a task that this one depends on. */
    upstream<T = any>(task: string): Promise<T>;
    /** A secret that the task was granted (`secrets`). */
    secret(name: string): Promise<string>;
    /** The group's key/value state: read as of now, written when this attempt succeeds and only then. */
    readonly state: {
      get<T = any>(key: string): Promise<T | null>;
      entry<T = any>(key: string): Promise<{ value: T; version: number } | null>;
      set(key: string, value: unknown): Promise<void>;
      delete(key: string): Promise<void>;
      /** `expected` is a version, or null: the key does not exist. */
      compareAndSet(key: string, expected: number | null, value: unknown): Promise<void>;
    };
    /** A database that the task was granted (`sql`). */
    sql(connection: string): {
      query<T = Record<string, any>>(statement: string, ...params: unknown[]): Promise<T[]>;
      /** How many rows the statement changed. */
      execute(statement: string, ...params: unknown[]): Promise<number>;
    };
    /** Makes a run of another group when this attempt succeeds. */
    enqueue(group: string, params?: Record<string, unknown>, key?: string): Promise<void>;
    /** Sends a notification when this attempt succeeds. */
    notify(channel: string, subject: string, body?: string): Promise<void>;
    /** A line of the log. `fields` are what is to be found or counted by itself. */
    log(level: "trace" | "debug" | "info" | "warn" | "error", message: string, fields?: Record<string, unknown>): void;
    /** From 0 to 1. */
    progress(fraction: number, note?: string): void;
  }

  export interface Message<T = any> {
    id: string;
    sender: number | bigint;
    receiver: number | bigint;
    due: string;
    payload: T;
  }

  export interface Batch<T = any> {
    topic: string;
    messages: Message<T>[];
  }

  export { Fatal, Retry, Skip };
}

/** Will never go better: not retried. */
declare class Fatal extends Error {}
/** May go better: retried, not before `after` (milliseconds, or a duration like "90s") has passed. */
declare class Retry extends Error {
  constructor(message?: string, after?: number | string, options?: ErrorOptions);
}
/** There is nothing to do: the task run ends `skipped`. */
declare class Skip extends Error {}
