// Sort a table by the column whose header is clicked: numbers descending, text alphabetically.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const body = table.tBodies[0];
      const value = (row) => row.cells[column].textContent.trim();
      const numeric = [...body.rows].some((row) => Number.isFinite(parseFloat(value(row))));
      const first = numeric ? "descending" : "ascending";
      const order = head.ariaSort === first ? (first === "ascending" ? "descending" : "ascending") : first;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const number = (row) => { const n = parseFloat(value(row)); return Number.isFinite(n) ? n : -Infinity; };
      const compare = numeric ? (a, b) => number(a) - number(b) : (a, b) => value(a).localeCompare(value(b));
      const sorted = [...body.rows].sort(compare);
      body.append(...(order === "descending" ? sorted.reverse() : sorted));
    });
  });
}
