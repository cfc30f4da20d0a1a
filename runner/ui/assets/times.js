// Times and spans that go on while one looks: how long ago, how long so far. Absolute times come from the server, in the
// viewer's zone; the first page of a new browser does not know it yet and is put right here.
const words = document.getElementById("words").dataset;
const { zone, lang } = document.body.dataset;
const units = lang === "zh" ? ["秒", "分", "小时", "天", "毫秒", "年"] : ["s", "min", "h", "d", "ms", "y"];

export function span(ms, whole = false) {
  const s = Math.round(ms / 1000);
  const two = (big, unit, small, next) => small ? `${big} ${unit} ${small} ${next}` : `${big} ${unit}`;
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ${units[4]}`;
  if (ms < 10000 && !whole) return `${Math.floor(ms / 1000)}.${Math.floor(ms % 1000 / 100)} ${units[0]}`;
  if (s < 60) return `${s} ${units[0]}`;
  if (s < 3600) return two(Math.floor(s / 60), units[1], s % 60, units[0]);
  if (s < 86400) return two(Math.floor(s / 3600), units[2], Math.floor(s % 3600 / 60), units[1]);
  const d = Math.floor(s / 86400);
  if (d < 30) return two(d, units[3], Math.floor(s % 86400 / 3600), units[2]);
  return d < 365 ? `${d} ${units[3]}` : two(Math.floor(d / 365), units[5], d % 365, units[3]);
}

const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };

export function tell(root = document) {
  const now = Date.now();
  for (const element of root.querySelectorAll("time[data-ago]")) {
    const off = now - Date.parse(element.dateTime);
    if (Math.abs(off) < 1000) say(element, words.now);
    else say(element, (off > 0 ? words.ago : words.in).replace("#", span(Math.abs(off) < 60000 ? Math.floor(Math.abs(off) / 1000) * 1000 : Math.abs(off), true)));
  }
  for (const element of root.querySelectorAll("[data-since]")) {
    const ms = now - Date.parse(element.dataset.since);
    say(element, span(ms < 10000 ? Math.floor(ms / 100) * 100 : ms));
  }
}

const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (own && !document.cookie.includes("heddle_zone=")) {
  document.cookie = `heddle_zone=${encodeURIComponent(own)}; Path=/; Max-Age=31536000; SameSite=Lax`;
  if (own !== zone) {
    const tag = document.documentElement.lang;
    // A time that the clocks show twice has its offset.
    const wall = new Intl.DateTimeFormat("en-GB", { dateStyle: "short", timeStyle: "short", timeZone: own });
    const offset = (at) => {
      if (![-60, -30, 30, 60].some((minutes) => wall.format(new Date(at.getTime() + 60000 * minutes)) === wall.format(at))) return "";
      const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "longOffset", timeZone: own }).formatToParts(at);
      return ` ${parts.find((part) => part.type === "timeZoneName").value.slice(3) || "+00:00"}`;
    };
    for (const element of document.querySelectorAll("time[data-at]")) {
      const at = new Date(element.dateTime);
      const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: element.dataset.at ? "2-digit" : undefined, fractionalSecondDigits: element.dataset.at === "ms" ? 3 : undefined, timeZone: own }).format(at);
      const year = at.getFullYear() === new Date().getFullYear() ? undefined : "numeric";
      const day = new Intl.DateTimeFormat(tag === "en" ? "en-US" : tag, { month: tag === "en" ? "short" : "long", day: "numeric", year, timeZone: own }).format(at);
      element.textContent = `${day} ${clock}${offset(at)}`;
    }
  }
}
tell();
setInterval(tell, 1000);
document.addEventListener("htmx:afterSwap", (event) => tell(event.target));
