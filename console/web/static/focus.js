// Give the terminal the keys once it shows something, and again when its tab comes back.
"use strict";
const focus = () => {
  const area = document.querySelector(".xterm-helper-textarea");
  if (area !== null) area.focus();
};
window.addEventListener("load", () => {
  new MutationObserver(focus).observe(document.body, {
    attributes: true,
    attributeFilter: ["class"],
  });
  focus();
});
window.addEventListener("focus", focus);
