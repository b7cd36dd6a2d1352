// Filters and sorts the rows of the table of evidence.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const form = document.querySelector(".filters"), body = document.querySelector("tbody");
  const rows = [...body.rows];

  function filter() {
    let shown = 0;
    for (const row of rows) {
      row.hidden = [...form.elements].some((field) =>
        field.value && (field.type === "number" ? Number(row.dataset[field.name]) < Number(field.value) : row.dataset[field.name] !== field.value));
      shown += !row.hidden;
    }
    document.getElementById("shown").textContent = `${shown} of ${rows.length} gains`;
  }

  const text = (row, at) => row.cells[at].dataset.sort || row.cells[at].textContent.trim();
  const order = (a, b) => (isNaN(parseFloat(a)) || isNaN(parseFloat(b)) ? a.localeCompare(b) : parseFloat(b) - parseFloat(a));

  for (const heading of document.querySelectorAll("thead th")) {
    heading.querySelector("button").addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") === "descending";
      for (const other of document.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const at = heading.cellIndex, way = up ? -1 : 1;
      rows.sort((a, b) => way * order(text(a, at), text(b, at)));
      body.append(...rows);
    });
  }
  form.addEventListener("input", filter);
  filter();
});
