"use strict";
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    const status = document.getElementById("status");
    let done = false;
    try {
      await navigator.clipboard.writeText(source.textContent);
      done = true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(source);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected";
    status.textContent = done ? "Copied to the clipboard." : "The text is selected; copy it with the keyboard.";
    setTimeout(() => { button.textContent = "Copy"; }, 2500);
  });
}
for (const button of document.querySelectorAll("button[data-sort]")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const table = head.closest("table");
    const column = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const each of head.parentNode.children) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.children[column].dataset.value ?? row.children[column].textContent.trim();
    const order = (a, b) => (isNaN(a) || isNaN(b) ? String(a).localeCompare(String(b)) : a - b);
    const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? order(key(b), key(a)) : order(key(a), key(b))));
    table.tBodies[0].append(...rows);
    document.getElementById("status").textContent =
      `Sorted by ${button.textContent.trim()}, ${down ? "largest" : "smallest"} first.`;
  });
}
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const each of opened) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of opened) each.open = false;
});
