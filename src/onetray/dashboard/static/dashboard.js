// What the browser does by itself: live fragments, ages, keys, the theme. Pages can be read without it.
"use strict";

const root = document.documentElement;

// The theme is the system's, unless it was switched here.
const themeSwitch = document.querySelector("[data-theme-switch]");
const stored = localStorage.getItem("onetray-theme");
if (stored === "light" || stored === "dark") root.dataset.theme = stored;
if (themeSwitch) {
  themeSwitch.hidden = false;
  themeSwitch.addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    localStorage.setItem("onetray-theme", root.dataset.theme);
  });
}

// Ages: by the server's clock.
const clockOffset = root.dataset.now ? Date.now() - Number(root.dataset.now) : 0;

function rough(seconds) {
  for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= unit) return `${Math.floor(seconds / unit)} ${name}`;
  }
  return `${Math.floor(seconds)} s`;
}

function tick() {
  const now = Date.now() - clockOffset;
  for (const element of document.querySelectorAll("time[data-ago]")) {
    const seconds = (Number(element.dataset.ago) - now) / 1000;
    const words = rough(Math.abs(seconds));
    const text = words === "0 s" ? "now" : seconds > 0 ? `in ${words}` : `${words} ago`;
    if (element.textContent !== text) element.textContent = text;
  }
}

// Live fragments: replace what has changed, and keep focus, selection, scroll positions, open details and typed input.

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || null : null;
}

function isSame(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
}

function morphAttributes(from, to) {
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !isKept(from, name)) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value && !isKept(from, name)) from.setAttribute(name, value);
  }
}

function isKept(element, attribute) {
  // What the user has opened, chosen or typed.
  if (attribute === "open") return element.nodeName === "DETAILS" || element.nodeName === "DIALOG";
  if (attribute === "aria-selected") return true;
  return attribute === "value" && element.nodeName === "INPUT" && element.type !== "hidden";
}

function morph(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  if (from.nodeName === "TIME" && from.dataset.ago && from.dataset.ago === to.dataset.ago) return;
  morphAttributes(from, to);
  if (from.nodeName === "TEXTAREA") return;
  if (from.nodeName === "SELECT" && from === document.activeElement) return;
  morphChildren(from, to);
}

function morphChildren(from, to) {
  const keyed = new Map();
  for (const child of from.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let here = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const key = keyOf(wanted);
    let match = key ? keyed.get(key) : here;
    if (!key) while (match && keyOf(match)) match = match.nextSibling;
    if (match && isSame(match, wanted)) {
      if (match === here) here = here.nextSibling;
      else from.insertBefore(match, here);
      morph(match, wanted);
    } else {
      from.insertBefore(wanted, here);
    }
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

function swap(name, fragment) {
  const element = document.querySelector(`[data-live="${CSS.escape(name)}"]`);
  if (!element) return;
  const template = document.createElement("template");
  template.innerHTML = fragment.html;
  morphChildren(element, template.content);
  element.dataset.hash = fragment.hash;
}

const fragments = () => [...document.querySelectorAll("[data-live]")];
const statusDot = document.querySelector("[data-status]");
let source = null;
let retryTimer = null;
let failures = 0;

function showStatus(isLive) {
  if (!statusDot) return;
  statusDot.hidden = false;
  statusDot.classList.toggle("off", !isLive);
  statusDot.title = isLive ? "Live" : "Connecting";
}

function connect() {
  clearTimeout(retryTimer);
  if (source || document.hidden || !fragments().length) return;
  const have = fragments().map((element) => `${element.dataset.live}:${element.dataset.hash}`).join(",");
  const query = new URLSearchParams({ page: location.pathname + location.search, have });
  source = new EventSource(`/ui/live?${query}`);
  source.onopen = () => {
    failures = 0;
    showStatus(true);
  };
  source.addEventListener("fragments", (event) => {
    for (const [name, fragment] of Object.entries(JSON.parse(event.data))) swap(name, fragment);
    follow();
    tick();
  });
  // Not the browser's own reconnect: the next request says what the page has now.
  source.onerror = () => {
    disconnect();
    showStatus(false);
    failures += 1;
    leaveIfGone();
    retryTimer = setTimeout(connect, Math.min(30000, 1000 * 2 ** failures) * (0.5 + Math.random() / 2));
  };
}

function disconnect() {
  if (source) source.close();
  source = null;
}

// As a browser that shows the page: who has to log in is redirected.
function look(url) {
  return fetch(url, { method: "HEAD", headers: { accept: "text/html" } });
}

// Whoever has to log in again, or looks at something that is gone, sees that, and no old data.
async function leaveIfGone() {
  try {
    const answer = await look(location.href);
    if (answer.redirected) {
      const login = new URL(answer.url);
      login.searchParams.set("ended", "1");
      location.replace(login);
    } else if ([403, 404].includes(answer.status)) location.reload();
  } catch {
    // The server is away: the next attempt to connect finds out.
  }
}

document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
window.addEventListener("pagehide", disconnect);
window.addEventListener("pageshow", connect);

// Forms that ask first, and texts to copy.

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy], [data-copy-from]");
  if (!button) return;
  const from = button.dataset.copyFrom ? document.getElementById(button.dataset.copyFrom) : button;
  try {
    await navigator.clipboard.writeText(button.dataset.copy ?? from.textContent);
    button.title = "Copied";
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  } catch {
    getSelection().selectAllChildren(from);
  }
});

// A log follows its end while its switch is on. Scrolling up turns it off, scrolling to the end on.

const followSwitch = document.querySelector("[data-follow-switch]");

function follow() {
  const log = document.querySelector("[data-follow]");
  if (log && followSwitch?.checked) log.scrollTop = log.scrollHeight;
}

document.addEventListener("scroll", (event) => {
  const log = event.target;
  if (followSwitch && log.dataset && "follow" in log.dataset) {
    followSwitch.checked = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  }
}, true);
followSwitch?.addEventListener("change", follow);

// Keys: / focuses the filter, j and k move in lists, enter opens, ? shows the help.

function rows() {
  return [...document.querySelectorAll("[data-list] tbody tr, ul[data-list] > li, ol[data-list] > li")];
}

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.getAttribute("aria-selected") === "true");
  const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1)];
  for (const row of all) row.removeAttribute("aria-selected");
  next.setAttribute("aria-selected", "true");
  next.scrollIntoView({ block: "nearest" });
}

function openSelected() {
  const row = rows().find((each) => each.getAttribute("aria-selected") === "true");
  const anchor = row && row.querySelector("a[href]");
  if (anchor) anchor.click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "/") {
    const filter = document.querySelector("[data-filter], input[type=search]");
    if (filter) {
      event.preventDefault();
      filter.focus();
    }
  } else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "Enter" && !event.target.closest("a, button, summary")) openSelected();
  else if (event.key === "?") document.querySelector("[data-help]")?.showModal();
});

// The cookie of a session is not sent when a link of another site leads here. From this page it is.
const loginForm = document.querySelector("[data-login]");
if (loginForm) {
  look(loginForm.dataset.login).then(
    (answer) => { if (answer.ok && !answer.redirected) location.replace(loginForm.dataset.login); },
    () => {},
  );
}

if (root.dataset.now) {
  // On a phone the menu is wider than the window.
  document.querySelector("nav [aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "center" });
  tick();
  follow();
  setInterval(tick, 1000);
  connect();
}
