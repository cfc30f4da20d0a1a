// The script {{name}}: one file, uploaded as it is. `heddle script push {{name}} {{name}}.ts`
import type { Context } from "heddle:task";

export const description = "Counts the words of a text, and remembers the longest one.";

/** What `run` takes: checked before each run, and the form that people fill in. */
interface Params {
  /** What is counted. */
  text?: string;
  /** Or where the text is; the task needs `allow_hosts` for it. */
  url?: string;
}

export const defaults: Params = { text: "a short example" };

export default async function run(params: Params, ctx: Context) {
  let text = params.text ?? "";
  if (params.url) {
    const response = await fetch(params.url);
    // May go better next time: the task's retry policy decides.
    if (response.status >= 500) throw new Retry(`${params.url} answered ${response.status}`, "30s");
    // Will never go better: not retried.
    if (!response.ok) throw new Fatal(`${params.url} answered ${response.status}`);
    text = await response.text();
  }
  const words = text.split(/\s+/).filter(Boolean);
  if (words.length === 0) throw new Skip("there are no words");
  console.info("counted", words.length, "words for", ctx.logicalTime);
  ctx.progress(1, `${words.length} words`);

  const longest = words.reduce((a, b) => (b.length > a.length ? b : a));
  // The group's own memory, written when this attempt succeeds and only then.
  const known = (await ctx.state.get<string>("longest")) ?? "";
  if (longest.length > known.length) await ctx.state.set("longest", longest);
  return { words: words.length, longest, record: longest.length > known.length };
}
