// The slider updates the page while it is dragged, arrow keys step through the changes, and buttons copy texts.
"use strict";

const state = () => document.getElementById("state");
const announce = (text) => { document.getElementById("said").textContent = text; };
let request = null;

// Show the state of an address in place of the present one, and abort the request before.
async function show(address, { push = false } = {}) {
  if (request) request.abort();
  request = new AbortController();
  state().classList.add("busy");
  state().setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(address, { signal: request.signal, headers: { accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const loaded = page.getElementById("state");
    if (!loaded) { location.assign(answer.url); return; }
    const focused = document.activeElement && document.activeElement.id;
    state().replaceWith(loaded);
    const snippets = document.querySelector(".snippets");
    const others = page.querySelector(".snippets");
    if (snippets && others) snippets.replaceWith(others);
    history[push ? "pushState" : "replaceState"]({}, "", answer.url);
    offerCopies();
    if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
    const slider = document.getElementById("slider");
    announce(slider ? slider.getAttribute("aria-valuetext") : "");
  } catch (stop) {
    if (stop.name !== "AbortError") location.assign(address);
  }
}

function addressAt(slider) {
  const places = JSON.parse(slider.dataset.places);
  const address = new URL(location.href);
  address.searchParams.delete("after");
  address.searchParams.set(slider.dataset.word, places[Number(slider.value)]);
  return address;
}

let waiting = null;
document.addEventListener("input", (event) => {
  if (event.target.id !== "slider") return;
  const slider = event.target;
  const time = JSON.parse(slider.dataset.places)[Number(slider.value)];
  slider.setAttribute("aria-valuetext", time);
  const field = document.querySelector(`form.moment input[name="${slider.dataset.word}"]`);
  if (field) field.value = time;
  clearTimeout(waiting);
  waiting = setTimeout(() => show(addressAt(slider)), 120);
});

document.addEventListener("keydown", (event) => {
  const names = { ArrowLeft: "previous", ArrowRight: "next" };
  const busy = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (!(event.key in names) || busy || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (event.target.closest(".scroll")) return; // the keys scroll there
  const link = document.getElementById(names[event.key]);
  if (!link) return;
  event.preventDefault();
  show(link.href, { push: true });
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const text = button.parentElement.querySelector("code").textContent;
  await navigator.clipboard.writeText(text);
  announce("Copied");
  button.firstChild.textContent = "Copied";
  setTimeout(() => { button.firstChild.textContent = "Copy"; }, 1500);
});

window.addEventListener("popstate", () => location.reload());

function offerCopies() {
  if (!navigator.clipboard) return;
  for (const button of document.querySelectorAll("button.copy")) button.hidden = false;
}
offerCopies();
