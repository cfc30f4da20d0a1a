// The dot that says whether the page is live, questions before a form is sent, and buttons that copy.
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
  // In brief mode, every stream ends soon, and the next one follows. So an end counts as a loss only after 15 seconds
  // without a message.
  const lost = (seconds) => {
    if (brief && Date.now() - heard < 15000) return;
    since ??= new Date(Date.now() - 1000 * seconds);
    if (!over) show("reconnecting", words.reconnecting);
  };
  // A proxy may hold an answer back until it has ended. So if nothing arrives within 6 seconds, the page asks for brief
  // answers from then on: the server ends each of these soon.
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
  // The object of the page was deleted. The server's message, which says who did that, is put above the page. The page
  // stays, so that nothing is lost that somebody has typed.
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
  // The dot shows that a stream has ended. The extension would write an error to the console as well.
  htmx.defineExtension("quiet", {
    init(api) {
      const tell = api.triggerErrorEvent;
      api.triggerErrorEvent = (element, name, detail) => {
        if (name === "htmx:sseError") api.triggerEvent(element, name, { source: detail.source });
        else tell(element, name, detail);
      };
    },
  });
  // A browser has six connections for a node. So a hidden page closes its stream. When the page is visible again, it gets
  // what it has missed: an error event of a closed source makes the extension open a new one.
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
  // Signing out leads to another page. Without this, the message about the ended session would load this page again.
  document.addEventListener("submit", (event) => { if (event.target.matches('[action="/sign-out"]')) { over = true; open?.close(); } });
  setInterval(() => {
    if (since && !over && Date.now() - since > 10000) show("stale", words.stale.replace("#", since.toLocaleTimeString(document.documentElement.lang, { hourCycle: "h23" })));
  }, 1000);
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  // If nothing is picked, there is nothing to confirm: the server's answer says what is missing.
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

// After a form was refused, the focus is on its first field with an error.
document.querySelector("main [aria-invalid]")?.focus();

// Choices that apply at once.
document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-at-once]");
  if (form) form.requestSubmit();
  const all = event.target.closest("[data-all]");
  if (all) for (const box of document.querySelectorAll(`input[name="${all.dataset.all}"]`)) box.checked = all.checked;
});

// When a part of the page is replaced, its ticked boxes stay ticked, and its folds stay open or closed.
let ticked = [], folds = [];
document.addEventListener("htmx:sseBeforeMessage", () => {
  ticked = [...document.querySelectorAll("[data-pick]:checked")].map((box) => box.value);
  folds = [...document.querySelectorAll("details[id]")].map((one) => [one.id, one.open]);
});
document.addEventListener("htmx:sseMessage", () => {
  for (const box of document.querySelectorAll("[data-pick]")) if (ticked.includes(box.value)) box.checked = true;
  for (const [id, open] of folds) { const one = document.getElementById(id); if (one && one.open !== open) one.open = open; }
});

// The rate of something, per second: its growth between the first and the last change of the last 30 seconds. Only changes
// count, because batches arrive at once, with pauses between them. The first number on the page is no change.
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

// The browser keeps the fields of a form that was sent, and fills them into the form when that is empty again.
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
