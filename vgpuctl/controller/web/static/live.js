// SPDX-License-Identifier: Apache-2.0
// Keeps the sections of this page as the controller has them. Without this file the page is the same, but not live.

const FIRST_WAIT = 1000, LONGEST_WAIT = 30000;
const note = document.getElementById("live");
const pending = new Set();
let source = null, wait = FIRST_WAIT, timer = 0, again = 0, pressing = false, leaving = false;

function say(state, text) {
  if (note.dataset.state === state) return; // a screen reader says each change once
  note.hidden = false;
  note.dataset.state = state;
  note.textContent = text;
}

// What can have the keyboard; and what is the same in the new section: its id, where it leads, or what its form sends.
const FOCUSABLE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";
function keyOf(one) {
  const sent = one.form ? `${one.form.action}?${new URLSearchParams(new FormData(one.form))}` : "";
  return one.id || one.getAttribute("href") || `${sent} ${one.textContent.trim()}`;
}

// Remembers where the reader is in a section, and goes back there in the new one.
function place(section) {
  const focus = section.contains(document.activeElement) ? document.activeElement : null;
  const number = focus ? [...section.querySelectorAll(FOCUSABLE)].indexOf(focus) : -1, key = focus ? keyOf(focus) : "";
  const lefts = [...section.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const open = [...section.querySelectorAll("details[open]")].map((one) => one.id);
  return (next) => {
    next.querySelectorAll("details").forEach((one) => { one.open = open.includes(one.id); });
    [...next.querySelectorAll(".scroll")].forEach((one, index) => { one.scrollLeft = lefts[index] ?? 0; });
    if (!focus) return;
    const others = [...next.querySelectorAll(FOCUSABLE)];
    const same = others.find((one) => keyOf(one) === key) ?? others[Math.min(number, others.length - 1)];
    (same ?? document.getElementById("main")).focus({ preventScroll: true });
  };
}

// Commands can be copied where the browser lets a page do that: over HTTPS, or on the controller itself.
function offerCopies(part) {
  if (navigator.clipboard) part.querySelectorAll("button.copy").forEach((one) => { one.hidden = false; });
}
addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const text = button.parentElement.previousElementSibling.textContent, note = button.nextElementSibling;
  note.textContent = await navigator.clipboard.writeText(text).then(() => "Copied.", () => "Your browser did not copy it.");
});
offerCopies(document);

// What was just done is shown once: loading the page again does not show it again.
const here = new URL(location.href);
if (here.searchParams.has("done")) {
  for (const name of ["done", "name"]) here.searchParams.delete(name);
  history.replaceState(null, "", here);
}

async function refresh(name) {
  if (pending.has(name)) return;
  pending.add(name);
  try {
    const address = new URL(location.href);
    address.hash = "";
    address.searchParams.set("section", name);
    const answer = await fetch(address, { cache: "no-store", redirect: "error" });
    if (!answer.ok) throw new Error(String(answer.status));
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(name);
    const old = document.getElementById(name);
    const goBack = place(old);
    old.replaceWith(document.adoptNode(next));
    goBack(next);
    offerCopies(next);
  } catch {
    say("away", "not live: a part of this page could not be read");
  } finally {
    pending.delete(name);
  }
}

function compare(digests) {
  clearTimeout(again);
  if (pressing || leaving) { // nothing goes away from under a finger, and no page that somebody just leaves loads again
    again = setTimeout(() => compare(digests), 500);
    return;
  }
  const shown = [...document.querySelectorAll("[data-digest]")];
  const names = Object.keys(digests);
  if (names.length !== shown.length || shown.some((one) => !(one.id in digests))) {
    location.reload(); // another set of sections: the first host, a pool that is paused, a right that is gone
    return;
  }
  say("live", "live");
  for (const one of shown) {
    if (one.dataset.digest === digests[one.id]) continue;
    const active = document.activeElement;
    if (one.contains(active) && active.matches("input, select, textarea")) continue; // somebody types there
    refresh(one.id);
  }
}

function later(first) {
  source?.close();
  source = null;
  clearTimeout(timer);
  if (!first) {
    timer = setTimeout(begin, 0);
    return;
  }
  say("away", "not live: connecting again");
  timer = setTimeout(begin, wait * (0.75 + Math.random() / 2));
  wait = Math.min(wait * 2, LONGEST_WAIT);
}

function begin() {
  source = new EventSource(document.body.dataset.stream);
  source.onmessage = (event) => {
    wait = FIRST_WAIT;
    compare(JSON.parse(event.data));
  };
  source.addEventListener("away", () => say("away", "not live: the database does not answer"));
  source.addEventListener("again", () => later(false));
  source.onerror = () => later(true);
}

addEventListener("pagehide", () => { source?.close(); source = null; clearTimeout(timer); });
addEventListener("pageshow", (event) => { if (event.persisted) begin(); });
addEventListener("pointerdown", () => { pressing = true; setTimeout(() => { pressing = false; }, 2000); });
for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { pressing = false; });
addEventListener("beforeunload", () => { leaving = true; setTimeout(() => { leaving = false; }, 5000); });
addEventListener("online", () => { if (!source) { clearTimeout(timer); begin(); } });
begin();

// A second click on the button of a form that changes something sends nothing.
addEventListener("submit", (event) => {
  if (event.target.method !== "post") return;
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
  setTimeout(() => { delete event.target.dataset.sent; }, 3000);
});
