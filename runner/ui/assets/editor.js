// A spec is coloured while it is written: behind the field, whose own letters are not drawn then. What is typed, marked,
// undone and sent is the field's, as it is without this script.
const { Prism } = window;

const FIRST = /^\s*[[{]/;
// A last empty line has a height only with something on it.
const END = "\u200b";
// After this long without a key, in milliseconds, the colours of the whole text are looked at.
const REST = 250;

// The lines of a text, each with its end.
const cut = (text) => text.match(/[^\n]*\n|[^\n]+/g) ?? [];

// The colours of some lines: for each, pieces of text with their class. What goes over several lines has a piece in each.
function coloured(text, grammar) {
  const last = text.endsWith(END);
  const lines = [[]];
  const add = (token, name) => {
    if (typeof token !== "string") {
      for (const part of [token.content].flat()) add(part, `t-${token.type}`);
      return;
    }
    for (const piece of cut(token)) {
      lines.at(-1).push([name, piece]);
      if (piece.endsWith("\n")) lines.push([]);
    }
  };
  for (const token of Prism.tokenize(last ? text.slice(0, -1) : text, grammar)) add(token, "");
  if (last) lines.at(-1).push(["", END]);
  else lines.pop();
  return lines;
}

// Plain nodes, never HTML: what people write is text.
function draw(pieces) {
  const line = document.createElement("span");
  for (const [name, text] of pieces) {
    const span = document.createElement("span");
    span.className = name;
    span.append(text);
    line.append(name ? span : text);
  }
  return line;
}

function light(field) {
  const box = field.parentElement;
  if (box.classList.contains("lit") || matchMedia("(forced-colors: active)").matches) return;
  const under = document.createElement("pre");
  under.setAttribute("aria-hidden", "true");
  field.before(under);
  box.classList.add("lit");
  const place = () => { under.scrollTop = field.scrollTop; under.scrollLeft = field.scrollLeft; };
  const size = () => {
    under.style.width = `${field.clientLeft + field.clientWidth}px`;
    under.style.height = `${field.clientTop + field.clientHeight}px`;
    place();
  };
  // The lines that are drawn: their text, and how they are coloured.
  let texts = [], colours = [], grammar = null, later = 0;
  // At once, only the lines that have changed are drawn, as if they stood alone. What they mean for others, as the end of a
  // quotation does, is seen when the keys rest: a long spec is not read whole for each of them.
  const paint = () => {
    const text = field.value + END;
    const now = cut(text);
    const speaks = FIRST.test(text) ? Prism.languages.json : Prism.languages.yaml;
    let from = 0, same = 0;
    if (speaks === grammar) {
      const most = Math.min(now.length, texts.length);
      while (from < most && now[from] === texts[from]) from += 1;
      while (same < most - from && now.at(-1 - same) === texts.at(-1 - same)) same += 1;
    }
    grammar = speaks;
    const fresh = coloured(now.slice(from, now.length - same).join(""), grammar);
    const old = document.createRange();
    old.setStart(under, from);
    old.setEnd(under, texts.length - same);
    old.deleteContents();
    const drawn = document.createDocumentFragment();
    for (const line of fresh) drawn.append(draw(line));
    under.insertBefore(drawn, under.childNodes[from] ?? null);
    const marks = fresh.map((line) => JSON.stringify(line));
    colours = [...colours.slice(0, from), ...marks, ...colours.slice(texts.length - same)];
    texts = now;
    place();
    clearTimeout(later);
    later = setTimeout(mend, REST);
  };
  const mend = () => {
    coloured(texts.join(""), grammar).forEach((line, index) => {
      const colour = JSON.stringify(line);
      if (colour === colours[index]) return;
      colours[index] = colour;
      under.childNodes[index].replaceWith(draw(line));
    });
  };
  field.addEventListener("input", paint);
  field.addEventListener("scroll", place, { passive: true });
  new ResizeObserver(size).observe(field);
  size();
  paint();
}

if (Prism) for (const field of document.querySelectorAll(".code-field > textarea")) light(field);
