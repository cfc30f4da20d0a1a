// The dot that says whether the page is live, questions before a form is sent, and buttons that copy.
const words = document.getElementById("words").dataset;
const dot = document.getElementById("live");

// When the session ends while something is typed that was not sent, the page stays and says so: with a new session, from
// another tab, it can be sent.
const notice = document.getElementById("ended");
function isTyped() {
  const changed = (field) => {
    if (field.form?.method !== "post" || field.type === "hidden") return false;
    if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
    if (field.tagName !== "SELECT") return field.value !== field.defaultValue;
    return field.selectedIndex !== Math.max(0, [...field.options].findIndex((option) => option.defaultSelected));
  };
  return !!notice.dataset.typed || [...document.querySelectorAll("main :is(input, select, textarea)")].some(changed);
}
function signedOut() {
  if (!notice || !isTyped()) { location.reload(); return; }
  notice.setAttribute("role", "alert");
  notice.hidden = false;
}
const signedIn = () => { if (notice) notice.hidden = true; };

// A stream is silent if no event has arrived for two and a half times as long as its node promised: a proxy may keep a
// connection open that forwards nothing any more. The result is to be called for each event, with the promised seconds if
// the event has them. (An older node says 1, which is no promise.)
function watch(silent) {
  let most = 0, last = 0, looked = 0, spared = 0;
  const look = () => {
    const now = performance.now();
    // This look is late: the page was throttled, or the computer slept. The browser may still hold events from that time.
    if (now - looked > 5000) spared = now + 5000;
    looked = now;
    if (!most || document.hidden || now < spared || now - last < most) return;
    const seconds = (now - last) / 1000;
    last = now;
    silent(seconds);
  };
  setInterval(look, 1000);
  document.addEventListener("visibilitychange", look);
  return (seconds) => {
    last = performance.now();
    if (seconds) most = seconds > 1 ? 2500 * seconds : 0;
  };
}

if (dot) {
  let since = null;
  let over = false;
  let open = null;
  let rests = 0;
  let heard = 0;
  let brief = false;
  let deaf = 0;
  let streams = false;
  // What the page has by now: the newest id of an event, in the format of `has` in the address of the stream. It names each
  // part once, so it is not longer than that.
  let newest = "";
  const show = (state, text) => {
    if (dot.dataset.state === state && dot.lastElementChild.textContent === text) return;
    dot.dataset.state = state;
    dot.lastElementChild.textContent = text;
  };
  const fine = () => { since = null; heard = Date.now(); alive(); signedIn(); if (!over) show("live", brief ? words.brief : words.live); };
  // In brief mode, every stream ends soon, and the next one follows. So an end counts as a loss only after 15 seconds
  // without a message.
  const lost = (seconds) => {
    if (brief && Date.now() - heard < 15000) return;
    since ??= new Date(Date.now() - 1000 * seconds);
    tellLost();
  };
  // Once it says that it is out of date, it says so until something arrives.
  const tellLost = () => {
    if (over) return;
    if (Date.now() - since < 5000) show("reconnecting", words.reconnecting);
    else show("stale", words.stale.replace("#", since.toLocaleTimeString(document.documentElement.lang, { hourCycle: "h23" })));
  };
  // An error event of a closed source makes the extension open a new one, after a while that grows with each failure.
  const again = (source) => { source.close(); source.dispatchEvent(new Event("error")); };
  const alive = watch((seconds) => {
    if (over || !open || open.readyState === EventSource.CLOSED) return;
    lost(seconds);
    again(open);
  });
  // A proxy may hold an answer back until it has ended. So if nothing arrives within 6 seconds, the page asks for brief
  // answers from then on: the server ends each of these soon.
  const listen = (source) => {
    clearTimeout(deaf);
    alive();
    if (brief || over) return;
    deaf = setTimeout(() => {
      if (source !== open || source.readyState === EventSource.CLOSED) return;
      brief = true;
      again(source);
    }, 6000);
  };
  const heeds = (source, seconds) => {
    clearTimeout(deaf);
    alive(seconds);
    // Streams have reached this page before: the proxy was silent, and does not hold them back. This is tried once.
    if (!brief) streams = true;
    else if (streams) { streams = brief = false; again(source); }
  };
  // The object of the page was deleted. The server's message, which says who did that, is put above the page. The page
  // stays, so that nothing is lost that somebody has typed.
  const told = async () => {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
    if (answer?.status !== 404) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.getElementById("main").prepend(...page.querySelectorAll("#main > section"));
  };
  // A new source knows no id of an earlier one, and the address tells what the page had when it was loaded: a part that is
  // again as it was then would not be sent, and the page would keep what it was in between.
  const fromNow = (url) => {
    if (!newest) return url;
    const address = new URL(url, location.href);
    address.searchParams.set("has", newest);
    return address.pathname + address.search;
  };
  htmx.createEventSource = (address) => {
    const url = fromNow(address);
    // The page may have been woken while the extension still waited to open another one: there is only one.
    open?.close();
    const source = new EventSource(brief ? `${url}&brief=1` : url, { withCredentials: true });
    open = source;
    listen(source);
    source.addEventListener("heard", (message) => heeds(source, Number(message.data)));
    source.addEventListener("here", (message) => { fine(); alive(Number(message.data)); });
    source.addEventListener("error", () => listen(source));
    source.addEventListener("away", (message) => { alive(); lost(Number(message.data)); });
    source.addEventListener("over", (message) => {
      over = true;
      source.close();
      show("stale", message.data === "signed-out" ? words.ended : words.over);
      if (message.data === "signed-out") signedOut();
      else told();
    });
    if (resting()) source.close();
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
  // what it has missed.
  const resting = () => rests === -1;
  const rest = () => { rests = -1; open?.close(); };
  const wake = () => {
    clearTimeout(rests);
    // Somebody may have signed in again in another tab.
    const back = over && notice && !notice.hidden;
    if (back) over = false;
    if (over || !(back || resting())) return;
    rests = 0;
    if (open?.readyState === EventSource.CLOSED) again(open);
  };
  addEventListener("pagehide", rest);
  addEventListener("pageshow", wake);
  addEventListener("focus", wake);
  document.addEventListener("visibilitychange", () => { if (document.hidden) { if (!resting()) rests = setTimeout(rest, 10000); } else wake(); });
  document.addEventListener("htmx:sseMessage", (event) => { newest = event.detail.lastEventId || newest; fine(); });
  // Signing out leads to another page. Without this, the message about the ended session would load this page again.
  document.addEventListener("submit", (event) => { if (event.target.matches('[action="/sign-out"]')) { over = true; open?.close(); } });
  setInterval(() => { if (since) tellLost(); }, 1000);
}

// A page that is not kept up to date, such as a form, hears only that its session has ended.
if (document.body.dataset.session) {
  let source = null, deaf = 0, rests = 0, brief = false, streams = false, left = false;
  const alive = watch(() => { if (!left && source.readyState !== EventSource.CLOSED) listen(); });
  const listen = () => {
    clearTimeout(deaf);
    alive();
    source?.close();
    const one = source = new EventSource(document.body.dataset.session + (brief ? "&brief=1" : ""));
    // A proxy may hold back what does not end.
    if (!brief) deaf = setTimeout(() => { brief = true; listen(); }, 6000);
    one.addEventListener("heard", (message) => {
      clearTimeout(deaf);
      alive(Number(message.data));
      signedIn();
      // The proxy was silent, as above.
      if (!brief) streams = true;
      else if (streams) { streams = brief = false; listen(); }
    });
    one.addEventListener("here", (message) => alive(Number(message.data)));
    one.addEventListener("over", () => { clearTimeout(deaf); one.close(); if (!left) signedOut(); });
    // Refused, which a browser does not repeat.
    one.addEventListener("error", () => { if (one === source && one.readyState === EventSource.CLOSED) { clearTimeout(deaf); deaf = setTimeout(listen, 5000); } });
  };
  const rest = () => { clearTimeout(deaf); source.close(); };
  const wake = () => { clearTimeout(rests); if (!left && source.readyState === EventSource.CLOSED) listen(); };
  listen();
  addEventListener("pagehide", rest);
  addEventListener("pageshow", wake);
  addEventListener("focus", wake);
  document.addEventListener("visibilitychange", () => { if (document.hidden) rests = setTimeout(rest, 10000); else wake(); });
  document.addEventListener("submit", (event) => { if (event.target.matches('[action="/sign-out"]')) { left = true; rest(); } });
}

// A page in place of one that cannot be shown at present: it is loaded as soon as there is another answer.
if (document.body.dataset.again) {
  const address = location.pathname + location.search;
  const look = async () => {
    const answer = await fetch(address, { headers: { accept: "text/html" } }).catch(() => null);
    if (answer && ![429, 503].includes(answer.status)) location.replace(address);
    else setTimeout(look, 1000 * document.body.dataset.again);
  };
  setTimeout(look, 1000 * document.body.dataset.again);
}

document.addEventListener("submit", (event) => {
  // A button of several asks its own question.
  const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
  // If nothing is picked, there is nothing to confirm: the server's answer says what is missing.
  const picked = event.target.matches("[data-picks]") ? document.querySelectorAll(`[data-pick][form="${event.target.id}"]:checked`).length : 1;
  if (question && picked && !confirm(question.replace("#", picked))) { event.preventDefault(); return; }
  // A second press of the same button does nothing, however long the answer takes, until the page is left. The forms that start
  // runs have a key, with which a second press starts nothing. So they can be pressed again after some seconds: their first
  // answer may have been stopped, and nothing else of such a form may be there to change. Others can be after a minute, which
  // is longer than a try to send a message. A backfill has no key.
  if (event.target.method === "post") {
    if (event.target.dataset.sent) { event.preventDefault(); return; }
    event.target.dataset.sent = "1";
    const keyed = event.target.matches('[target="_blank"]') || event.target.querySelector('[name="once"]');
    if (!event.target.matches("[data-unkeyed]")) setTimeout(() => delete event.target.dataset.sent, keyed ? 4000 : 60000);
  }
});
// What somebody has changed since is another form, with another key: it asks for other runs, and the answer of the first may
// have been stopped.
document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (!form) return;
  delete form.dataset.sent;
  const key = form.querySelector('input[name="once"]');
  const digits = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  if (key) key.value = key.value.slice(0, -32) + digits;
});
// Whoever comes back to a page can send its form again. It keeps its key: its answer may have been lost on the way.
addEventListener("pageshow", () => { for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent; });

// Browsers have a clipboard for pages over HTTPS only, and may refuse it. The text beside the button is then selected, and
// copied if the browser still does that; otherwise one key copies it.
async function copies(button) {
  if (navigator.clipboard && await navigator.clipboard.writeText(button.dataset.copy).then(() => true, () => false)) return true;
  const texts = [...button.closest("li, section").querySelectorAll("code, pre")];
  const shown = texts.find((one) => one.textContent === button.dataset.copy) ?? texts[0];
  if (!shown) return false;
  getSelection().selectAllChildren(shown);
  return document.execCommand("copy");
}
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button || !await copies(button)) return;
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
