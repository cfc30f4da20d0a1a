// Whether the page is live, what is asked before it is done, what is copied.
const words = document.getElementById("words").dataset;
const dot = document.getElementById("live");

if (dot) {
  let since = null;
  let over = false;
  let open = null;
  let rests = 0;
  let heard = 0;
  let brief = false;
  let deaf = 0;
  const show = (state, text) => {
    if (dot.dataset.state === state && dot.lastElementChild.textContent === text) return;
    dot.dataset.state = state;
    dot.lastElementChild.textContent = text;
  };
  const fine = () => { since = null; heard = Date.now(); if (!over) show("live", brief ? words.brief : words.live); };
  // Answers that end are no loss, as long as another follows.
  const lost = (seconds) => {
    if (brief && Date.now() - heard < 15000) return;
    since ??= new Date(Date.now() - 1000 * seconds);
    if (!over) show("reconnecting", words.reconnecting);
  };
  // Something on the way that hands out an answer when it has ended, and not before: from now on, answers that end.
  const listen = (source) => {
    clearTimeout(deaf);
    if (brief || over) return;
    deaf = setTimeout(() => {
      if (source !== open || source.readyState === EventSource.CLOSED) return;
      brief = true;
      source.close();
      source.dispatchEvent(new Event("error"));
    }, 6000);
  };
  // What the page was about is gone. Who did that stands above the page, on which nothing that somebody typed is lost.
  const told = async () => {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
    if (answer?.status !== 404) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.getElementById("main").prepend(...page.querySelectorAll("#main > section"));
  };
  htmx.createEventSource = (url) => {
    const source = new EventSource(brief ? `${url}&brief=1` : url, { withCredentials: true });
    open = source;
    listen(source);
    source.addEventListener("here", () => { clearTimeout(deaf); fine(); });
    source.addEventListener("error", () => listen(source));
    source.addEventListener("away", (message) => lost(Number(message.data)));
    source.addEventListener("over", (message) => {
      over = true;
      source.close();
      show("stale", message.data === "signed-out" ? words.ended : words.over);
      if (message.data === "signed-out") location.reload();
      else told();
    });
    return source;
  };
  document.addEventListener("htmx:sseError", () => { if (!resting()) lost(0); });
  // That a stream has ended is told by the dot. The extension would write an error to the console as well.
  htmx.defineExtension("quiet", {
    init(api) {
      const tell = api.triggerErrorEvent;
      api.triggerErrorEvent = (element, name, detail) => {
        if (name === "htmx:sseError") api.triggerEvent(element, name, { source: detail.source });
        else tell(element, name, detail);
      };
    },
  });
  // A browser has six connections for a node. A page that nobody looks at gives its own back, and asks for what it has
  // missed when somebody looks again: the extension opens anew after an error of a source that is closed.
  const resting = () => rests === -1;
  const rest = () => { rests = -1; open?.close(); };
  const wake = () => {
    clearTimeout(rests);
    if (!resting() || over) return;
    rests = 0;
    if (open?.readyState === EventSource.CLOSED) open.dispatchEvent(new Event("error"));
  };
  addEventListener("pagehide", rest);
  addEventListener("pageshow", wake);
  document.addEventListener("visibilitychange", () => { if (document.hidden) { if (!resting()) rests = setTimeout(rest, 10000); } else wake(); });
  document.addEventListener("htmx:sseMessage", fine);
  // Who signs out is led away: to be told of it as well would load the page that they leave.
  document.addEventListener("submit", (event) => { if (event.target.matches('[action="/sign-out"]')) { over = true; open?.close(); } });
  setInterval(() => {
    if (since && !over && Date.now() - since > 10000) show("stale", words.stale.replace("#", since.toLocaleTimeString(document.documentElement.lang, { hourCycle: "h23" })));
  }, 1000);
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  // Nothing is asked about nothing: the answer says what is missing.
  const picked = event.target.matches("[data-picks]") ? document.querySelectorAll(`[data-pick][form="${event.target.id}"]:checked`).length : 1;
  if (question && picked && !confirm(question.replace("#", picked))) { event.preventDefault(); return; }
  // A second press of the same button is not a second run.
  if (event.target.method === "post") {
    if (event.target.dataset.sent) { event.preventDefault(); return; }
    event.target.dataset.sent = "1";
    setTimeout(() => delete event.target.dataset.sent, 4000);
  }
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  const before = button.textContent;
  button.textContent = words.copied;
  setTimeout(() => { button.textContent = before; }, 1500);
});

// After a form was refused one goes on where the first error is.
document.querySelector("main [aria-invalid]")?.focus();

// Choices that apply at once.
document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-at-once]");
  if (form) form.requestSubmit();
  const all = event.target.closest("[data-all]");
  if (all) for (const box of document.querySelectorAll(`input[name="${all.dataset.all}"]`)) box.checked = all.checked;
});

// What somebody has ticked, opened or closed stays so when the part of the page that it stands in is written anew.
let ticked = [], folds = [];
document.addEventListener("htmx:sseBeforeMessage", () => {
  ticked = [...document.querySelectorAll("[data-pick]:checked")].map((box) => box.value);
  folds = [...document.querySelectorAll("details[id]")].map((one) => [one.id, one.open]);
});
document.addEventListener("htmx:sseMessage", () => {
  for (const box of document.querySelectorAll("[data-pick]")) if (ticked.includes(box.value)) box.checked = true;
  for (const [id, open] of folds) { const one = document.getElementById(id); if (one && one.open !== open) one.open = open; }
});

// How fast something goes: what has come from one change to another, over half a minute. What goes by batches comes at
// once, and then for a while not at all; and when the page was opened, nobody knows what came just before.
let looks = [], known = null, rate = null;
function reckon() {
  const shown = document.querySelector("[data-rate]");
  if (!shown) { looks = []; known = rate = null; return; }
  const n = Number(shown.dataset.rate), at = performance.now();
  if (known !== null && n > known) looks.push({ n, at });
  known = n;
  looks = looks.filter((look, index) => index >= looks.length - 2 || at - look.at <= 30_000);
  const [first, last] = [looks[0], looks.at(-1)];
  if (first && last.at - first.at >= 2_000) rate = (last.n - first.n) * 1000 / (last.at - first.at);
  if (rate === null) return;
  shown.hidden = false;
  shown.querySelector("b").textContent = Math.round(rate).toLocaleString("en");
}
reckon();
document.addEventListener("htmx:sseMessage", reckon);

// What was filled in last stays in this browser, and stands in the form again when it is empty.
for (const form of document.querySelectorAll("form[data-keep]")) {
  const fields = [...form.elements].filter((field) => field.name);
  const key = `heddle/${form.dataset.keep}`;
  try {
    if (fields.every((field) => !field.value || field.tagName === "SELECT")) {
      const kept = JSON.parse(localStorage.getItem(key) ?? "{}");
      for (const field of fields) if (kept[field.name] !== undefined) field.value = kept[field.name];
    }
    form.addEventListener("submit", () => {
      const text = JSON.stringify(Object.fromEntries(fields.map((field) => [field.name, field.value])));
      if (text.length < 100_000) localStorage.setItem(key, text);
    });
  } catch { /* a browser that keeps nothing */ }
}

// Files that are dropped anywhere on the page go into the form for them.
const drop = document.querySelector("form[data-drop]");
if (drop) {
  const input = drop.querySelector('input[type="file"]');
  const over = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => { if (over(event)) { event.preventDefault(); drop.classList.add("over"); } });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
  addEventListener("drop", (event) => {
    drop.classList.remove("over");
    if (!over(event)) return;
    event.preventDefault();
    if (!input.multiple && event.dataTransfer.files.length > 1) return;
    input.files = event.dataTransfer.files;
    drop.querySelector('button[type="submit"]').focus();
  });
}
