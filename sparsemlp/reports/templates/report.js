"use strict";
(() => {
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const filter = document.getElementById("filter");
  const count = document.getElementById("count");

  const valueOf = (row, index) => {
    const cell = row.cells[index];
    if (!("value" in cell.dataset)) return null;
    if (!cell.classList.contains("n")) return cell.dataset.value;
    const number = Number(cell.dataset.value);
    return Number.isNaN(number) ? null : number;
  };
  // What is not known stays at the end, whichever way the rest is sorted.
  const compare = (a, b, way) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number") return way * (a - b);
    return way * a.localeCompare(b, undefined, { numeric: true });
  };
  heads.forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keyed = rows.map((row) => [valueOf(row, index), row]);
      keyed.sort((one, other) => compare(one[0], other[0], up ? 1 : -1));
      body.append(...keyed.map((pair) => pair[1]));
    });
  });

  const words = new Map(rows.map((row) => [
    row, [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase(),
  ]));
  const apply = () => {
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !wanted.every((word) => words.get(row).includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${rows.length} runs`;
  };
  filter.addEventListener("input", apply);
  filter.closest("p").hidden = false;
  apply();
  // Paper has no details to open.
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((details) => { details.open = true; });
  });
})();
