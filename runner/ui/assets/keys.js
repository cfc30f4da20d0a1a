// Everything by keyboard: search, going places, moving in lists.
const palette = document.getElementById("palette");
const keys = document.getElementById("keys");
const places = { o: "/", g: "/groups", r: "/runs", b: "/backfills", s: "/scripts", q: "/queues", d: "/dispatch", t: "/topics", n: "/notifications", y: "/system" };
let going = -Infinity;

function open() {
  palette.showModal();
  const input = palette.querySelector("input");
  input.select();
  htmx.trigger(input, "shown");
}

// The rows of the page's lists, and what a row is about: that may be named behind something else.
const rows = () => [...document.querySelectorAll("main tbody tr:has(a)")];
const about = (row) => row.querySelector("[data-main]") ?? row.querySelector("a");
let chosenRow = null;

// Moves in the palette or in the page's lists; says whether there was somewhere to go.
function step(by) {
  const inside = palette?.open ? [...palette.querySelectorAll("#found a")] : rows();
  if (!inside.length) return false;
  const at = inside.findIndex((one) => one.getAttribute("aria-selected") === "true");
  // At either end the arrows scroll on to what stands there.
  if (at >= 0 && !inside[at + by]) return false;
  if (at >= 0) inside[at].removeAttribute("aria-selected");
  const next = inside[Math.max(0, at + by)];
  next.setAttribute("aria-selected", "true");
  if (!palette?.open) { chosenRow = next; about(next).focus({ preventScroll: true }); }
  next.scrollIntoView({ block: "nearest" });
  return true;
}

// A live update makes the rows as the node has them: it takes the mark away, and a row may then be about something else. What
// was chosen stays chosen, with the focus if it was there, wherever it stands now.
let choice = null;
document.addEventListener("htmx:sseBeforeMessage", () => {
  const isChosen = chosenRow?.isConnected && chosenRow.getAttribute("aria-selected") === "true";
  choice = isChosen ? { href: about(chosenRow)?.href, focused: chosenRow.contains(document.activeElement) } : null;
});
document.addEventListener("htmx:sseMessage", () => {
  if (!choice) return;
  const { href, focused } = choice;
  const isIt = (row) => about(row)?.href === href;
  const now = chosenRow.isConnected && isIt(chosenRow) ? chosenRow : rows().find(isIt);
  if (now !== chosenRow) chosenRow.removeAttribute("aria-selected");
  chosenRow = now ?? null;
  if (!now) return;
  now.setAttribute("aria-selected", "true");
  if (focused && !now.contains(document.activeElement)) about(now).focus({ preventScroll: true });
});

if (palette) {
  palette.addEventListener("keydown", (event) => {
    // A search field would only clear itself.
    if (event.key === "Escape" && !event.isComposing) { event.preventDefault(); palette.close(); }
    if (event.key === "ArrowDown") { event.preventDefault(); step(1); }
    if (event.key === "ArrowUp") { event.preventDefault(); step(-1); }
    if (event.key === "Enter") {
      const chosen = palette.querySelector('#found a[aria-selected="true"]') ?? palette.querySelector("#found a");
      if (chosen) { event.preventDefault(); chosen.click(); }
    }
  });
  palette.addEventListener("click", (event) => { if (event.target === palette) palette.close(); });
  // Whoever comes back by the history comes back to the page, not to the palette.
  addEventListener("pagehide", () => palette.close());
}

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") { if (palette) { event.preventDefault(); open(); } return; }
  if (event.ctrlKey || event.metaKey || event.altKey || palette?.open || keys?.open) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  // The time of the key counts, not the time when the page gets to it: a page that is busy between two keys loses none.
  const within = event.timeStamp < going;
  going = -Infinity;
  if (within && places[event.key]) { event.preventDefault(); location.href = places[event.key]; return; }
  if (event.key === "g") going = event.timeStamp + 1500;
  else if (event.key === "/") { event.preventDefault(); document.getElementById("search")?.focus(); }
  else if (event.key === "?" && keys) keys.showModal();
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  // What scrolls by itself, and pictures, have arrows of their own.
  else if (["ArrowDown", "ArrowUp"].includes(event.key) && !event.target.closest("svg, .scroll, .zoom, .grid-scroll, .log-box, summary")) {
    if (step(event.key === "ArrowDown" ? 1 : -1)) event.preventDefault();
  }
  else if (event.key === "t") {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `heddle_theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Lax`;
  }
});
