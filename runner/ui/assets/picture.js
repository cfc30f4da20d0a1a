// The grid and the graph: what HTML cannot do by itself. Cells of the grid are few paths, not a hundred thousand elements;
// which cell is meant follows from where the pointer or the keyboard is.
function cellAt(grid, x, y) {
  const { columns, rows, size } = grid;
  const column = Math.floor(x / size), row = Math.floor(y / size);
  return column >= 0 && row >= 0 && column < columns && row < rows ? { column, row } : null;
}

// What has been set up, and what is to be done when an update has written it anew: attributes do not outlive that.
const known = new WeakMap();

// What is told of the cell that is pointed at. A cell is asked for once, and only when the pointer rests on it.
let pointed = "", opened = "", asking = 0;
const told = new Map();

// What is open beside the grid need not be told beside the pointer, until that comes from elsewhere.
function hush(key) {
  clearTimeout(asking);
  pointed = "";
  opened = key;
  document.getElementById("tip").hidden = true;
}

function point(svg, grid, cell, x, y) {
  const tip = document.getElementById("tip");
  const key = cell ? `${grid.runs[cell.column]} ${grid.tasks[cell.row]}` : "";
  if (key === pointed || (key && key === opened)) return;
  pointed = key;
  opened = "";
  clearTimeout(asking);
  if (!cell) { tip.hidden = true; return; }
  const [title, inside] = tip.children;
  const tell = () => {
    title.firstElementChild.textContent = `${grid.tasks[cell.row]} · ${svg.dataset.labels.split("|")[cell.column]}`;
    inside.innerHTML = told.get(key) ?? "";
    tip.hidden = false;
    const at = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - at.width - 8))}px`;
    tip.style.top = `${y + 18 + at.height > innerHeight ? y - at.height - 12 : y + 18}px`;
  };
  if (!tip.hidden || told.has(key)) tell();
  if (told.has(key)) return;
  asking = setTimeout(async () => {
    const query = new URLSearchParams({ run: grid.runs[cell.column], task: grid.tasks[cell.row], brief: 1 });
    const answer = await fetch(`${svg.dataset.detail}?${query}`, { headers: { "hx-request": "true" } }).catch(() => null);
    if (told.size > 500) told.clear();
    told.set(key, answer?.ok ? await answer.text() : "");
    if (pointed === key) tell();
  }, 90);
}
document.addEventListener("htmx:sseMessage", () => told.clear());

function setUp(svg) {
  if (known.has(svg)) return known.get(svg)();
  svg.addEventListener("closed", () => { at = null; mark(); });
  const read = () => ({
    columns: Number(svg.dataset.columns), rows: Number(svg.dataset.rows), size: Number(svg.dataset.size), top: Number(svg.dataset.top),
    runs: svg.dataset.runs.split(" "), tasks: svg.dataset.tasks.split("/").map(decodeURIComponent),
  });
  // Which cell is marked: its run and its task. Each new run moves the columns.
  let at = null;
  const cellOf = (grid) => {
    const column = grid.runs.indexOf(at?.run), row = grid.tasks.indexOf(at?.task);
    return column < 0 || row < 0 ? null : { column, row };
  };
  const mark = () => {
    const grid = read(), cell = cellOf(grid), here = svg.querySelector(".here");
    if (!cell) { here.setAttribute("visibility", "hidden"); return; }
    here.setAttribute("x", cell.column * grid.size + 1);
    here.setAttribute("y", grid.top + cell.row * grid.size + 1);
    here.setAttribute("width", grid.size - 2);
    here.setAttribute("height", grid.size - 2);
    here.removeAttribute("visibility");
  };
  const show = (cell, detail) => {
    const grid = read();
    at = { run: grid.runs[cell.column], task: grid.tasks[cell.row] };
    mark();
    if (!detail) return;
    document.getElementById("grid-view").classList.add("has-detail");
    hush(`${at.run} ${at.task}`);
    svg.querySelector(".here").scrollIntoView({ block: "nearest", inline: "nearest" });
    htmx.ajax("GET", `${svg.dataset.detail}?${new URLSearchParams(at)}`, { target: "#detail", swap: "innerHTML" });
    history.replaceState(null, "", `?${new URLSearchParams({ ...Object.fromEntries(new URLSearchParams(location.search)), ...at })}`);
  };
  const from = (event) => {
    const grid = read();
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    return cellAt(grid, (event.clientX - box.left) * scale, (event.clientY - box.top) * scale - grid.top);
  };
  svg.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") point(svg, read(), from(event), event.clientX, event.clientY); });
  svg.addEventListener("pointerleave", () => point(svg));
  svg.addEventListener("blur", () => point(svg));
  svg.addEventListener("click", (event) => { const cell = from(event); if (cell) { event.preventDefault(); show(cell, true); svg.focus({ preventScroll: true }); } });
  svg.addEventListener("keydown", (event) => {
    // The bars of the runs are links.
    if (event.target !== svg) return;
    const grid = read();
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], h: [-1, 0], l: [1, 0], k: [0, -1], j: [0, 1] };
    if (moves[event.key]) {
      event.preventDefault();
      event.stopPropagation();
      const cell = cellOf(grid) ?? { column: grid.columns - 1, row: -moves[event.key][1] };
      show({ column: Math.min(grid.columns - 1, Math.max(0, cell.column + moves[event.key][0])), row: Math.min(grid.rows - 1, Math.max(0, cell.row + moves[event.key][1])) }, false);
      const here = svg.querySelector(".here");
      here.scrollIntoView({ block: "nearest", inline: "nearest" });
      const place = here.getBoundingClientRect();
      point(svg, grid, cellOf(grid), place.right, place.bottom);
    } else if (event.key === "Enter" && cellOf(grid)) { event.preventDefault(); show(cellOf(grid), true); }
  });
  // The address may name the cell whose details are shown.
  const asked = new URLSearchParams(location.search);
  if (asked.has("run") && asked.has("task")) at = { run: asked.get("run"), task: asked.get("task") };
  known.set(svg, mark);
  mark();
}

// The details go as they came: nothing but they has moved, and the address tells of none.
function close() {
  const view = document.getElementById("grid-view");
  if (!view?.classList.contains("has-detail")) return false;
  view.classList.remove("has-detail");
  document.getElementById("detail").replaceChildren();
  const query = new URLSearchParams(location.search);
  for (const name of ["run", "task"]) query.delete(name);
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
  document.querySelector("svg[data-columns]")?.dispatchEvent(new Event("closed"));
  return true;
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]") && !event.target.closest("input, textarea, select")) close();
});
document.addEventListener("click", (event) => {
  if (event.target.closest("#detail [data-close]") && close()) { event.preventDefault(); document.querySelector("svg[data-columns]")?.focus({ preventScroll: true }); }
});

// The names of the grid are one stop of the Tab key, and so are the bars of the runs: arrows, Home and End move within them.
// A thousand links would keep the key from what follows.
const LISTS = [[".grid-names a", "ArrowUp", "ArrowDown"], ["svg[data-columns] > a", "ArrowLeft", "ArrowRight"]];
function stops(box) {
  for (const [selector] of LISTS) {
    const all = [...box.querySelectorAll(selector)];
    const stop = all.find((one) => one === document.activeElement) ?? all.find((one) => one === box.stops?.[selector]) ?? all[selector[0] === "s" ? all.length - 1 : 0];
    (box.stops ??= {})[selector] = stop;
    for (const one of all) if (one.tabIndex !== (one === stop ? 0 : -1)) one.setAttribute("tabindex", one === stop ? 0 : -1);
  }
}
function walk(event) {
  const box = event.currentTarget;
  const list = LISTS.find(([selector]) => event.target.matches(selector));
  if (!list || event.ctrlKey || event.metaKey || event.altKey) return;
  const [selector, back, forth] = list, all = [...box.querySelectorAll(selector)], at = all.indexOf(event.target);
  const to = { [back]: at - 1, [forth]: at + 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  all[to]?.focus();
}

function newest(box) {
  stops(box);
  if (known.has(box)) return;
  known.set(box, () => {});
  box.addEventListener("keydown", walk);
  box.addEventListener("focusin", () => stops(box));
  box.scrollLeft = box.scrollWidth;
  box.querySelector(".here:not([visibility])")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// Nearer than this, names can be read; from farther away boxes have the colours of their states and larger letters.
const NEAR = .65;

function zoomable(box) {
  if (known.has(box)) return known.get(box)();
  const svg = box.querySelector("svg");
  const { width, height } = svg.viewBox.baseVal;
  let factor = 1;
  const draw = () => {
    svg.setAttribute("width", Math.floor(width * factor));
    svg.setAttribute("height", Math.floor(height * factor));
    box.classList.toggle("far", factor < NEAR);
  };
  known.set(box, draw);
  // What is at a place of the box stays there.
  const apply = (next, x = box.clientWidth / 2, y = box.clientHeight / 2) => {
    next = Math.min(3, Math.max(.15, next));
    const left = (box.scrollLeft + x) * next / factor - x, top = (box.scrollTop + y) * next / factor - y;
    factor = next;
    draw();
    box.scrollTo(left, top);
  };
  const at = (event) => { const place = box.getBoundingClientRect(); return [event.clientX - place.left, event.clientY - place.top]; };
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    apply(factor * (event.deltaY < 0 ? 1.15 : 1 / 1.15), ...at(event));
  }, { passive: false });
  box.addEventListener("dblclick", (event) => { if (!event.target.closest("a")) apply(factor < 1 ? 1 : whole(), ...at(event)); });
  // All of it, as large as there is room. What is too large even so begins where it failed or begins, not in an empty corner.
  const room = parseFloat(getComputedStyle(box).maxHeight) || box.clientHeight;
  // Few boxes are to be read, on a phone too, and many are to be told apart there: one scrolls if need be.
  const least = svg.querySelectorAll(".node").length <= 12 ? .45 : box.clientWidth < 500 ? .35 : 0;
  const whole = () => Math.max(least, Math.min(1, box.clientWidth / width, room / height));
  const fit = () => {
    apply(whole(), 0, 0);
    const first = svg.querySelector(".node:has(.s-failed)") ?? svg.querySelector(".node");
    if (!first || (svg.clientWidth <= box.clientWidth && svg.clientHeight <= box.clientHeight)) return;
    const node = first.getBoundingClientRect(), place = box.getBoundingClientRect();
    box.scrollTo(box.scrollLeft + node.x - place.x - 24, box.scrollTop + node.y - place.y - (place.height - node.height) / 2);
  };
  fit();
  let drag = null;
  box.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && !event.target.closest("a")) drag = { x: event.clientX, y: event.clientY, left: box.scrollLeft, top: box.scrollTop }; });
  addEventListener("pointermove", (event) => { if (drag) box.scrollTo(drag.left - event.clientX + drag.x, drag.top - event.clientY + drag.y); });
  addEventListener("pointerup", () => { drag = null; });
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.hidden = false;
    button.addEventListener("click", () => button.dataset.zoom === "fit" ? fit() : apply(factor * Number(button.dataset.zoom)));
  }
}

// A stretch of time, marked with the mouse, leads to its runs.
function marks(svg) {
  if (known.has(svg)) return;
  known.set(svg, () => {});
  const { group, left, span } = svg.dataset;
  const place = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(Number(left) + Number(span), Math.max(Number(left), (event.clientX - box.left) * 100 / box.width));
  };
  let from = null;
  svg.addEventListener("dragstart", (event) => event.preventDefault());
  svg.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse" && event.button === 0) from = place(event); });
  addEventListener("pointermove", (event) => {
    if (from === null) return;
    const mark = svg.querySelector(".marked"), to = place(event);
    mark.setAttribute("x", `${Math.min(from, to)}%`);
    mark.setAttribute("width", `${Math.abs(to - from)}%`);
  });
  addEventListener("pointerup", (event) => {
    if (from === null) return;
    const ends = [from, place(event)].sort((a, b) => a - b);
    from = null;
    svg.querySelector(".marked").setAttribute("width", 0);
    if (ends[1] - ends[0] < .6) return;
    const at = (x) => new Date(Number(svg.dataset.from) + (x - left) / span * (svg.dataset.to - svg.dataset.from)).toISOString();
    const [since, until] = svg.dataset.by === "start" ? ["from", "to"] : ["logical_from", "logical_to"];
    location.href = `/runs?${new URLSearchParams({ group, [since]: at(ends[0]), [until]: at(ends[1]) })}`;
  });
}

function all() {
  document.querySelectorAll("svg[data-columns]").forEach(setUp);
  document.querySelectorAll(".grid-scroll").forEach(newest);
  document.querySelectorAll(".zoom").forEach(zoomable);
  document.querySelectorAll("svg.scatter").forEach(marks);
  for (const hint of document.querySelectorAll("[data-hint]")) hint.hidden = false;
}
all();
document.addEventListener("htmx:afterSwap", all);
