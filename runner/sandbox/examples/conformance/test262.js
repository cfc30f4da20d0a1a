// In the place of our main module: evaluates a test of Test262 in each run. `HARNESS` stands before this text.
// Here `eval` is still what it was: what scripts find, which is without it, comes with our own modules below.
const evaluate = globalThis.eval;
const { begin, bind, describe, event } = await import("heddle:runtime");
await import("heddle:web");

globalThis.print = () => {};
globalThis.$262 = {
  global: globalThis,
  evalScript: (text) => evaluate(text),
  gc() {},
  destroy() {},
  detachArrayBuffer: (buffer) => void buffer.transfer(),
  createRealm() { throw new Error("$262.createRealm is not there"); },
  get agent() { throw new Error("$262.agent is not there"); },
};

// What a file of the harness defines has to outlive its evaluation; and one makes classes by `Function`, which is off.
const MAKES_CLASSES = "new Function('return class My' + type + ' extends ' + type + ' {}')()";
const include = (name) => {
  const text = HARNESS[name].replace(MAKES_CLASSES, "$262.evalScript('(class My' + type + ' extends ' + type + ' {})')");
  evaluate(text.replace(/^(?:let|const) /gm, "var ").replace(/^class (\w+)/gm, "var $1 = class $1"));
};
include("assert.js");
include("sta.js");

const told = (thrown) => {
  if (typeof thrown !== "object" || thrown === null) return { name: "", message: String(thrown) };
  let name = "";
  try {
    name = String(thrown.constructor.name);
  } catch {}
  let message = "";
  try {
    message = String(thrown.message);
  } catch {}
  return { name, message };
};

// A dummy that `await`s has its own job; the host ends a run in which nothing is left to do.
bind({
  async run({ text, includes, isAsync }) {
    try {
      for (const name of includes) include(name);
      let ended;
      if (isAsync) {
        ended = new Promise((resolve, reject) => {
          globalThis.$DONE = (error) => (error ? reject(error) : resolve());
        });
      }
      evaluate(text);
      await ended;
      return null;
    } catch (thrown) {
      return told(thrown);
    }
  },
});

export { begin, describe, event };
