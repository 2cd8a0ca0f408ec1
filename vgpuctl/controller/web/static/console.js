// SPDX-License-Identifier: Apache-2.0
// Shows the screen of a desktop by noVNC. A ticket, which the controller gives to this page, opens the stream once.

const screen = document.getElementById("console-screen"), note = document.getElementById("console-state");
const opener = document.getElementById("console-open"), field = document.getElementById("console-text");
const SHIFT = 0xffe1, MODIFIERS = [SHIFT, 0xffe2, 0xffe3, 0xffe4, 0xffe9, 0xffea]; // and Control, Alt, left and right
const SHIFTED = '~!@#$%^&*()_+{}|:"<>?ABCDEFGHIJKLMNOPQRSTUVWXYZ'; // with the keys of a US keyboard
let rfb = null, problem = "";

function say(text) {
  note.textContent = text;
}

function show(connected) {
  opener.textContent = connected ? "Close the screen" : "Open the screen";
  for (const one of document.querySelectorAll("#console-reset, #console-full, #console-form button")) {
    one.disabled = !connected;
  }
}

function text(error) {
  return error.hint ? `${error.message} (${error.hint})` : error.message;
}

async function ticket() {
  const headers = { "Content-Type": "application/json", "X-Vgpuctl-Token": screen.dataset.token };
  const answer = await fetch(screen.dataset.ticket, { method: "POST", headers, body: "{}", redirect: "error" });
  const given = await answer.json();
  if (!answer.ok) throw new Error(text(given.error));
  return given.data.ticket;
}

async function open() {
  opener.disabled = true;
  problem = "";
  say("The screen is being opened.");
  try {
    const { default: RFB } = await import(screen.dataset.rfb);
    const address = new URL(screen.dataset.stream, location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address, ["binary", `vgpuctl-ticket.${await ticket()}`]);
    socket.addEventListener("message", (event) => { // why it ends comes as text
      if (typeof event.data === "string") problem = text(JSON.parse(event.data).error);
    });
    rfb = new RFB(screen, socket);
    rfb.scaleViewport = true;
    rfb.addEventListener("connect", () => { show(true); say("The screen is open."); rfb.focus(); });
    rfb.addEventListener("credentialsrequired", () => { problem = "it asks for a password"; rfb.disconnect(); });
    rfb.addEventListener("disconnect", () => {
      rfb = null;
      show(false);
      say(`The screen is closed${problem ? `: ${problem}` : "."}`);
    });
  } catch (error) {
    say(`The screen is not opened: ${error.message}`);
  } finally {
    opener.disabled = false;
  }
}

function type(characters) {
  for (const one of characters) {
    if (SHIFTED.includes(one)) rfb.sendKey(SHIFT, null, true);
    rfb.sendKey(one.codePointAt(0), null);
    if (SHIFTED.includes(one)) rfb.sendKey(SHIFT, null, false);
  }
}

opener.addEventListener("click", () => (rfb ? rfb.disconnect() : open()));
document.getElementById("console-reset").addEventListener("click", () => { rfb?.sendCtrlAltDel(); rfb?.focus(); });
document.getElementById("console-full").addEventListener("click", () => { screen.requestFullscreen(); rfb?.focus(); });
document.getElementById("console-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!rfb) return;
  if (!/^[ -~]*$/.test(field.value)) {
    say("Only characters of a US keyboard can be typed from here.");
    return;
  }
  type(field.value);
  field.value = "";
  rfb.focus();
});
addEventListener("keydown", (event) => {
  if (!rfb || !event.ctrlKey || !event.altKey || !event.shiftKey || !screen.contains(document.activeElement)) return;
  event.stopPropagation();
  event.preventDefault();
  for (const one of MODIFIERS) rfb.sendKey(one, null, false);
  opener.focus();
}, true);
addEventListener("pagehide", () => rfb?.disconnect());
show(false);
