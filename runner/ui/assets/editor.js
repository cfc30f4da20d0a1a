// A spec is coloured while it is written: behind the field, whose own letters are not drawn then. What is typed, marked,
// undone and sent is the field's, as it is without this script.
const { Prism } = window;

const FIRST = /^\s*[[{]/;

// Plain nodes, never HTML: what people write is text.
function draw(token, into) {
  if (typeof token === "string") { into.append(token); return; }
  const span = document.createElement("span");
  span.className = `t-${token.type}`;
  for (const part of [token.content].flat()) draw(part, span);
  into.append(span);
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
  const paint = () => {
    const text = field.value;
    const tokens = Prism.tokenize(text, FIRST.test(text) ? Prism.languages.json : Prism.languages.yaml);
    const shown = document.createDocumentFragment();
    for (const token of tokens) draw(token, shown);
    // A last empty line has a height only with something on it.
    shown.append("\u200b");
    under.replaceChildren(shown);
    place();
  };
  field.addEventListener("input", paint);
  field.addEventListener("scroll", place, { passive: true });
  new ResizeObserver(size).observe(field);
  size();
  paint();
}

if (Prism) for (const field of document.querySelectorAll(".code-field > textarea")) light(field);
