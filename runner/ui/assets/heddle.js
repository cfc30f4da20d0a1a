// Whether the page is live, what is asked before it is done, what is copied.
const words = document.getElementById("words").dataset;
const dot = document.getElementById("live");

if (dot) {
  let since = null;
  let over = false;
  const show = (state, text) => {
    if (dot.dataset.state === state && dot.lastElementChild.textContent === text) return;
    dot.dataset.state = state;
    dot.lastElementChild.textContent = text;
  };
  const fine = () => { since = null; if (!over) show("live", words.live); };
  const lost = () => { since ??= new Date(); if (!over) show("reconnecting", words.reconnecting); };
  document.addEventListener("htmx:sseOpen", (event) => {
    fine();
    const source = event.detail.source;
    source.addEventListener("here", fine);
    source.addEventListener("away", lost);
    source.addEventListener("over", (message) => {
      over = true;
      source.close();
      show("stale", message.data === "signed-out" ? words.ended : words.over);
      if (message.data === "signed-out") location.reload();
    });
  });
  document.addEventListener("htmx:sseError", lost);
  document.addEventListener("htmx:sseMessage", fine);
  setInterval(() => {
    if (since && !over && Date.now() - since > 10000) show("stale", words.stale.replace("#", since.toLocaleTimeString(document.documentElement.lang)));
  }, 1000);
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) { event.preventDefault(); return; }
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

// Choices that apply at once.
document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-at-once]");
  if (form) form.requestSubmit();
  const all = event.target.closest("[data-all]");
  if (all) for (const box of document.querySelectorAll(`input[name="${all.dataset.all}"]`)) box.checked = all.checked;
});
