// Elements and texts. Whatever comes from tasks becomes text, and nothing else: no HTML is ever parsed.

const by = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// What is as it should be is left alone, for screen readers and for whoever is just selecting it.
function write(node, text) {
  if (node.textContent !== String(text)) node.textContent = text;
}

function button(label, spoken, onClick, kind = "") {
  const made = element("button", { type: "button", ...(kind && { class: kind }) }, label);
  made.setAttribute("aria-label", spoken);
  made.addEventListener("click", onClick);
  return made;
}

function link(cell, href, text) {
  const anchor = cell.querySelector("a") ?? cell.appendChild(element("a"));
  if (anchor.getAttribute("href") !== href) anchor.setAttribute("href", href);
  write(anchor, text);
}

// A table that is filled again and again. Rows are known by their keys and stay what they are, so that
// focus and selection stay too. A column is {name, show(cell, item)} and may say kind: number, wide.
class Table {
  constructor(id, columns, keyOf) {
    this.table = by(id);
    this.columns = columns;
    this.keyOf = keyOf;
    this.body = element("tbody", { role: "rowgroup" });
    const heads = columns.map(({ name, kind, head }) => {
      const cell = element("th", { role: "columnheader", scope: "col", class: kind ?? "" }, head ?? name);
      return cell;
    });
    this.table.setAttribute("role", "table");
    const row = element("tr", { role: "row" }, ...heads);
    this.table.append(element("thead", { role: "rowgroup" }, row), this.body);
  }

  fill(items) {
    const old = new Map([...this.body.children].map((row) => [row.dataset.key, row]));
    let place = this.body.firstElementChild;
    for (const item of items) {
      const key = String(this.keyOf(item));
      const row = old.get(key) ?? this.row(key);
      old.delete(key);
      this.columns.forEach(({ show }, n) => show(row.children[n], item));
      if (row === place) place = row.nextElementSibling;
      else this.body.insertBefore(row, place);
    }
    for (const row of old.values()) this.remove(row);
    this.table.hidden = items.length === 0;
  }

  row(key) {
    const cells = this.columns.map(({ name, kind }) =>
      element("td", { role: "cell", "data-label": name, class: kind ?? "" }));
    const row = element("tr", { role: "row" }, ...cells);
    row.dataset.key = key;
    return row;
  }

  remove(row) {
    const hadFocus = row.contains(document.activeElement);
    row.remove();
    if (hadFocus) by(this.table.getAttribute("aria-labelledby")).focus();
  }
}

const numbers = new Intl.NumberFormat("en");
const count = (value) => numbers.format(value);

function bytes(value) {
  if (!value) return "–";
  return value < 1 << 30 ? `${(value / 1048576).toFixed(0)} MiB` : `${(value / 1073741824).toFixed(1)} GiB`;
}

function duration(seconds) {
  if (seconds < 1) return `${Math.round(Math.max(0, seconds) * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

const ageOf = (time) => (serverNow() - Date.parse(time)) / 1000;

function clock(time) {
  const date = new Date(time);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? date.toLocaleTimeString("en-GB") : date.toLocaleString("en-GB");
}

// A moment as people say it, with the exact one to point at.
function moment(cell, time, isShort = true) {
  if (!time) return write(cell, "–");
  const shown = cell.querySelector("time") ?? cell.appendChild(element("time"));
  shown.setAttribute("datetime", time);
  shown.setAttribute("title", time);
  const age = ageOf(time);
  const relative = age >= 0 ? `${duration(age)} ago` : `in ${duration(-age)}`;
  write(shown, isShort ? relative : `${clock(time)}, ${relative}`);
}

function badge(cell, word, kind = word) {
  const shown = cell.querySelector(".badge") ?? cell.appendChild(element("span"));
  shown.className = `badge ${kind}`;
  write(shown, word);
}

// A line of the last values, drawn to the scale of the greatest.
function sparkline(place, values) {
  const SVG = "http://www.w3.org/2000/svg";
  let svg = place.querySelector("svg");
  if (!svg) {
    svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 150 30");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.append(document.createElementNS(SVG, "polyline"));
    place.append(svg);
  }
  const top = Math.max(1, ...values);
  const from = 150 - values.length;
  const points = values.map((value, n) => `${from + n},${(29 - (value / top) * 28).toFixed(1)}`);
  svg.firstChild.setAttribute("points", points.join(" "));
}
