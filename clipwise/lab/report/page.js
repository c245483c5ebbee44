
"use strict";
// Charts: a cursor that follows the pointer, and the arrow keys where the chart has the focus.
const withCursors = (root) => {
  for (const chart of root.querySelectorAll(".chart")) {
    const stops = JSON.parse(chart.dataset.points);
    const svg = chart.querySelector("svg");
    const line = svg.querySelector(".cursor");
    const label = chart.querySelector("output");
    const width = svg.viewBox.baseVal.width;
    let at = -1;
    svg.querySelectorAll("circle > title").forEach((title) => title.remove()); // the label below says it better
    const show = (place) => {
      at = Math.max(0, Math.min(stops.length - 1, place));
      const { x, text } = stops[at];
      line.setAttribute("transform", `translate(${x} 0)`);
      line.classList.add("on");
      label.textContent = text;
      label.hidden = false;
      const right = x > width / 2; // the label stands on the roomier side
      label.style.left = right ? "auto" : `${(100 * x) / width + 1.5}%`;
      label.style.right = right ? `${100 - (100 * x) / width + 1.5}%` : "auto";
    };
    const hide = () => {
      at = -1;
      line.classList.remove("on");
      label.hidden = true;
    };
    const nearest = (x) => {
      let best = 0;
      stops.forEach((stop, place) => {
        if (Math.abs(stop.x - x) < Math.abs(stops[best].x - x)) best = place;
      });
      return best;
    };
    if (!stops.length) continue;
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      show(nearest(((event.clientX - box.left) / box.width) * width));
    });
    svg.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", (event) => {
      const to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? stops.length - 1 : at - 1, Home: 0, End: stops.length - 1 };
      if (event.key in to) {
        show(to[event.key]);
        event.preventDefault();
      } else if (event.key === "Escape") {
        hide();
      }
    });
  }
};
withCursors(document);

// Tables: pressing a heading sorts by it, pressing again turns the order; empty cells stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("th")];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      const sign = down ? -1 : 1;
      const body = table.tBodies[0];
      const key = (row) => row.cells[column].textContent.trim();
      const rows = [...body.rows].sort((a, b) => {
        const [left, right] = [key(a), key(b)];
        if (left === "" || right === "") return (left === "") - (right === "");
        const difference = Number(left) - Number(right);
        return sign * (Number.isNaN(difference) ? left.localeCompare(right) : difference);
      });
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      body.append(...rows);
    });
  });
}

// On paper nothing can be opened: every fold is open while printing, and as it was afterwards.
const folded = new Set();
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details:not([open])")) {
    folded.add(fold);
    fold.open = true;
  }
});
addEventListener("afterprint", () => {
  folded.forEach((fold) => (fold.open = false));
  folded.clear();
});
