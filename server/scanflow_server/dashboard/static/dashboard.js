// What the pages do in a browser beyond htmx: the reader's time zone, the state of the connection, keys of forms.
"use strict";

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const zoneCookie = `scanflow_zone=${encodeURIComponent(zone)}`;
if (zone && !document.cookie.split("; ").includes(zoneCookie)) {
  document.cookie = `${zoneCookie}; path=/; max-age=31536000; samesite=strict`;
  if (document.querySelector("time")) location.reload();  // once: only a page that shows times in another zone
}

// A session's key is known to this origin alone; its cookie is sent to every port of the host.
const KEY = "scanflow_key";
const signedIn = document.querySelector("meta[name=session-key]");
if (signedIn) {
  localStorage.setItem(KEY, signedIn.content);
  location.replace(signedIn.dataset.next);
}
document.addEventListener("submit", (event) => {
  const field = event.target.elements.namedItem("session_key");
  if (field) field.value = localStorage.getItem(KEY) ?? "";
  if (new URL(event.target.action).pathname === "/logout") localStorage.removeItem(KEY);
}, true);  // before htmx, which sends some forms by itself

// A form that is refused stays as it was filled in, and the page says why: all but those whose answer is a page.
const refusal = document.getElementById("refusal");
async function send(form, button, body) {
  if (button) button.disabled = true;
  refusal.hidden = true;
  try {
    const answer = await fetch(button?.getAttribute("formaction") ?? form.action, {method: "POST", body});
    if (answer.ok) return location.assign(answer.url);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    refusal.textContent = page.querySelector("[role=alert]")?.textContent ?? `The server answered ${answer.status}.`;
  } catch {
    refusal.textContent = "The server did not answer when this was sent. Look whether it was done before you send it again.";
  }
  refusal.hidden = false;
  if (button) button.disabled = false;
}
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!refusal || !form.elements.namedItem("session_key") || form.matches("[hx-post], [data-page]")) return;
  event.preventDefault();
  send(form, event.submitter, new URLSearchParams(new FormData(form, event.submitter)));
});

// What a filter shows is what the address says, also where the browser brings back a page as it was left.
addEventListener("pageshow", (event) => {
  if (event.persisted) document.querySelectorAll("form.filter[method=get]").forEach((form) => form.reset());
});

// Forms that show the current values follow these until something is typed or chosen.
document.addEventListener("input", (event) => {
  event.target.closest("[data-until-typed]")?.setAttribute("hx-morph-skip", "");
});

const connection = document.getElementById("connection");
function report(text) {
  if (!connection) return;
  connection.hidden = !text;
  connection.querySelector("span").textContent = text;
  connection.querySelector("a").hidden = !text.startsWith("You");
}
let isShutOut = false;  // who is asked again and again who they are fills the audit log
function reportFailure(status) {
  isShutOut = status === 401 || status === 403;
  report(isShutOut
    ? "You are no longer logged in."
    : "The server does not answer. What you see is what it showed last; trying again.");
}
document.addEventListener("htmx:sse:error", (event) => reportFailure(event.detail.status));
document.addEventListener("htmx:sse:before:connection", (event) => { if (isShutOut) event.preventDefault(); });
document.addEventListener("htmx:sse:after:connection", () => report(""));
for (const failure of ["htmx:error", "htmx:response:error"]) {  // of the first connection, which the extension leaves
  document.addEventListener(failure, (event) => {
    reportFailure(event.detail.ctx?.response?.status);
    if (!isShutOut) setTimeout(() => event.target.dispatchEvent(new Event("retry")), 2000 + 2000 * Math.random());
  });
}

// While the server does not answer, a link would lead to the browser's own page about that, and what is shown would be
// gone.
document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[href]");
  if (!link || !connection || connection.hidden || isShutOut || link.origin !== location.origin) return;
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || link.target) return;
  if (link.hash && link.pathname + link.search === location.pathname + location.search) return;
  event.preventDefault();
  try {
    await fetch(link.href, {method: "HEAD"});
    location.assign(link.href);
  } catch {
    report("The server still does not answer: the link was not followed. Trying again.");
  }
});

// A log is shown at its end, but for one that is read elsewhere or of which something is selected.
let held = new Set();
document.addEventListener("htmx:before:swap", () => {
  const selection = getSelection();
  held = new Set([...document.querySelectorAll("[data-follow]")]
    .filter((log) => log.scrollTop + log.clientHeight < log.scrollHeight - 4
      || !selection.isCollapsed && selection.containsNode(log, true)).map((log) => log.id));
});
function scrollLogs() {
  for (const log of document.querySelectorAll("[data-follow]")) if (!held.has(log.id)) log.scrollTop = log.scrollHeight;
}
document.addEventListener("htmx:after:swap", scrollLogs);
scrollLogs();
document.addEventListener("keydown", (event) => {  // at once: the browser goes there slowly, until lines come and go
  if (event.key !== "End" || event.shiftKey || !event.target.matches("[data-follow]")) return;
  event.preventDefault();
  event.target.scrollTop = event.target.scrollHeight;
});

function measureTop(text, at) {  // of the line that begins there, in pixels of the window
  const line = document.createRange();
  line.setStart(text, at);
  return line.getBoundingClientRect().top;
}

// What is selected in a log stays selected, and what is read stays where it is: htmx would write all of its text anew,
// and most of it is there. The first lines go, later ones come, and the last may have changed.
window.htmx?.registerExtension("logs", {htmx_before_morph_node: (log, {newNode}) => {
  const text = log.firstChild, after = newNode.textContent;
  if (!text || !log.matches("[data-follow]")) return;
  const lines = text.data.slice(0, text.data.lastIndexOf("\n") + 1);
  let gone = 0;
  for (let tries = 1; !after.startsWith(lines.slice(gone)); tries++) {  // so many: it is quick with any text
    const next = tries < 100 ? lines.indexOf(after.slice(0, 40), gone + 1) : -1;
    gone = next < 0 ? lines.length : next;
  }
  const isMoved = gone && held.has(log.id), top = isMoved && measureTop(text, gone);
  text.deleteData(0, gone);
  const left = text.data;
  let same = lines.length - gone;
  while (same < left.length && left[same] === after[same]) same++;
  text.replaceData(same, left.length, after.slice(same));
  if (isMoved) log.scrollTop += measureTop(text, 0) - top;  // the browser keeps the place of elements, not of lines
}});

// Escape closes what asks before it does something.
document.addEventListener("keydown", (event) => {
  const confirmation = event.key === "Escape" && document.querySelector("details.confirm[open]");
  if (!confirmation) return;
  confirmation.open = false;
  confirmation.querySelector("summary").focus();
});

// A command is copied by a click on it.
document.addEventListener("click", (event) => {
  const command = event.target.closest("button[data-copy]");
  if (command) navigator.clipboard?.writeText(command.dataset.copy).then(() => {
    command.dataset.copied = "";
    setTimeout(() => delete command.dataset.copied, 1500);
  });
});
