// The page of `crewboard serve`: gives the secret of the link to textual-serve's script, which runs after this one.
"use strict";

const REFUSED = "`crewboard serve` refuses this link.\nOpen the one that it printed last.";
const ENDED = "The dashboard is closed. Agents keep running.\nReload the page to open it again.";
const LOST = "The connection to `crewboard serve` is lost. Agents keep running.\n"
  + "Reload the page. If `crewboard serve` has ended, start it again and open its link.";

// What the server closes a websocket with when the dashboard ended: RFC 6455, 7.4.1.
const NORMAL_CLOSURE = 1000;

// A cookie would be sent to every server of this machine, whatever its port. This storage belongs to the tab and to the
// page's own host and port, and a reload keeps it.
const KEY = "crewboard";
const fromLink = /^#token=([\w.~%-]+)$/.exec(location.hash);
if (fromLink) sessionStorage.setItem(KEY, fromLink[1]);
const secret = sessionStorage.getItem(KEY);

// The address bar is seen by others, and copied.
history.replaceState(null, "", "/");

// A link that is pasted into a tab with this page loads nothing by itself.
addEventListener("hashchange", () => location.reload());

function notify(text) {
  const notice = document.querySelector("#notice");
  notice.textContent = text;
  notice.hidden = false;
}

window.WebSocket = class extends WebSocket {
  constructor(address) {
    super(address, ["crewboard", secret]);
    let opened = false;
    this.addEventListener("open", () => { opened = true; });
    this.addEventListener("close", ({ code }) => {
      notify(!opened ? REFUSED : code === NORMAL_CLOSURE ? ENDED : LOST);
    });
    this.addEventListener("message", ({ data }) => {
      if (typeof data !== "string") return;
      const [kind, value] = JSON.parse(data);
      if (kind === "title") document.title = value;
    });
  }
};

addEventListener("DOMContentLoaded", () => {
  if (!secret) return;
  const terminal = document.querySelector("#terminal");
  terminal.dataset.sessionWebsocketUrl = `${location.origin.replace(/^http/, "ws")}/ws`;
  // textual-serve's script starts a terminal in each element of this class.
  terminal.className = "textual-terminal";
  document.querySelector("#notice").hidden = true;

  // It would wait for a click before it takes keys.
  const appeared = new MutationObserver(() => {
    const input = document.querySelector(".xterm-helper-textarea");
    if (input) { appeared.disconnect(); input.focus(); }
  });
  appeared.observe(document.body, { childList: true, subtree: true });
});
