"use strict";
/* Tables: sorted by a click on a heading, downloaded as CSV. */
(() => {
  const order = new Intl.Collator("en", { numeric: true });
  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
  const isNumber = (value) => NUMBER.test(value) || /^-?Infinity$/.test(value);
  const isMissing = (value) => value === "" || value === "NaN";
  const valueOf = (cell) => cell.dataset.value ?? cell.textContent.trim();

  /* Numbers as numbers and before text, text as people sort it. */
  const compare = (a, b) => {
    if (isNumber(a) !== isNumber(b)) return isNumber(a) ? -1 : 1;
    if (!isNumber(a)) return order.compare(a, b);
    return (Number(a) > Number(b)) - (Number(a) < Number(b));
  };

  /* Rows by one column, missing values last either way. */
  const sort = (table, column, sign) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, value: valueOf(row.cells[column]) }));
    const present = rows.filter(({ value }) => !isMissing(value));
    present.sort((a, b) => sign * compare(a.value, b.value));
    const missing = rows.filter(({ value }) => isMissing(value));
    body.append(...[...present, ...missing].map(({ row }) => row));
  };

  /* Text that a spreadsheet would take for a formula gets an apostrophe; numbers stay numbers. */
  const field = (value) => {
    const safe = /^[=+\-@\t\r\n＝＋－＠]/.test(value) && !isNumber(value) ? `'${value}` : value;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };

  const csv = (table) => [...table.rows]
    .map((row) => [...row.cells].map((cell) => field(valueOf(cell))).join(",") + "\r\n").join("");

  const download = (table) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(table)], { type: "text/csv;charset=utf-8" }));
    link.download = table.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  };

  document.querySelectorAll(".table").forEach((box) => {
    const table = box.querySelector("table");
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (!head.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const isUp = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
        sort(table, column, isUp ? 1 : -1);
      });
    });
    if (box.closest(".stacked")) {
      const names = heads.map((head) => head.textContent);
      [...table.tBodies[0].rows].forEach((row) =>
        [...row.cells].forEach((cell, column) => { cell.dataset.head = names[column]; }));
    }
    const button = document.createElement("button");
    button.type = "button";
    button.className = "csv";
    button.textContent = "CSV";
    button.ariaLabel = `Download ${table.dataset.file}`;
    button.addEventListener("click", () => download(table));
    box.append(button);
  });
})();
