// Everything by keyboard: search, going places, moving in lists.
const palette = document.getElementById("palette");
const keys = document.getElementById("keys");
const places = { o: "/", g: "/groups", r: "/runs", b: "/backfills", s: "/scripts", q: "/queues", d: "/dispatch", t: "/topics", n: "/notifications", y: "/system" };
let going = 0;

function open() {
  palette.showModal();
  const input = palette.querySelector("input");
  input.select();
  htmx.trigger(input, "shown");
}

function step(by) {
  const inside = palette.open ? [...palette.querySelectorAll("#found a")] : [...document.querySelectorAll("main tbody tr:has(a)")];
  if (!inside.length) return;
  const at = inside.findIndex((one) => one.getAttribute("aria-selected") === "true");
  if (at >= 0) inside[at].removeAttribute("aria-selected");
  const next = inside[Math.min(inside.length - 1, Math.max(0, at + by))];
  next.setAttribute("aria-selected", "true");
  if (!palette.open) next.querySelector("a").focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

if (palette) {
  palette.addEventListener("keydown", (event) => {
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
  if (Date.now() < going && places[event.key]) { going = 0; event.preventDefault(); location.href = places[event.key]; return; }
  going = 0;
  if (event.key === "g") going = Date.now() + 1500;
  else if (event.key === "/") { event.preventDefault(); document.getElementById("search")?.focus(); }
  else if (event.key === "?" && keys) keys.showModal();
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "t") {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `heddle_theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Lax`;
  }
});
