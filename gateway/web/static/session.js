// With a login: every change that a page sends carries the session's token, and there is a way out.
const token = document.cookie.match(/(?:^|; )contrafact_csrf=([0-9a-f]+)/)?.[1];
if (token) {
  const send = window.fetch;
  window.fetch = (address, options = {}) => {
    const ours = new URL(address, location.href).origin === location.origin;
    if (!ours || ["GET", "HEAD"].includes((options.method ?? "GET").toUpperCase())) return send(address, options);
    const headers = new Headers(options.headers);
    headers.set("X-CSRF-Token", token);
    return send(address, { ...options, headers });
  };
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("logout");
    if (!button) return;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await fetch("/logout", { method: "POST" });
      location.assign("/login");
    });
  });
}
