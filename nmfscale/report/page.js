"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const data = read("data");
  const notes = read("score-notes");
  const at = (id) => document.getElementById(id);
  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  const shown = (value) =>
    value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(value ? 2 : 1);

  // Write a name with the part that was searched for marked.
  function named(tag, text, sought, name) {
    const made = element(tag, undefined, name);
    const place = sought ? text.toLowerCase().indexOf(sought) : -1;
    if (place < 0) {
      made.textContent = text;
    } else {
      const end = place + sought.length;
      made.append(text.slice(0, place), element("mark", text.slice(place, end)), text.slice(end));
    }
    made.title = text;
    return made;
  }

  // The leading features of each topic by the chosen score.
  function drawCards() {
    const score = at("score").value;
    const sought = at("find").value.trim().toLowerCase();
    at("score-note").textContent = notes[score];
    let hits = 0;
    data.keywords[score].forEach((words, k) => {
      const list = document.querySelector(`#topic-${k} .keywords`);
      const largest = Math.max(...words.map((each) => Math.abs(each[1])), Number.MIN_VALUE);
      list.replaceChildren(
        ...words.map(([word, value]) => {
          const item = element("li");
          const bar = element("span", undefined, "bar");
          bar.style.width = `${(100 * Math.abs(value)) / largest}%`;
          const text = score === "z" ? value.toFixed(1) : `${shown(100 * value)}%`;
          item.append(bar, named("span", word, sought, "word"), element("span", text, "value"));
          return item;
        })
      );
      const found = sought && words.some(([word]) => word.toLowerCase().includes(sought));
      if (found) hits += 1;
      at(`topic-${k}`).hidden = Boolean(sought) && !found;
    });
    at("found").textContent = sought ? `in ${hits} of ${data.topics.length} topics` : "";
  }
  at("score").addEventListener("change", drawCards);
  at("find").addEventListener("input", drawCards);
  drawCards();
  document.querySelectorAll(".keywords").forEach((list) => { list.tabIndex = 0; });

  // The table of features: sorted by a column, searched, and extended on request.
  const rows = data.features.map((name, i) => [name, ...data.frequencies[i]]);
  let column = 1, falling = true, most = 25;
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  function drawTable() {
    const sought = at("filter").value.trim().toLowerCase();
    const kept = rows.filter((row) => !sought || row[0].toLowerCase().includes(sought));
    kept.sort((a, b) => (falling ? -1 : 1) * compare(a[column], b[column]));
    const body = at("feature-table").tBodies[0];
    body.replaceChildren(
      ...kept.slice(0, most).map((row) => {
        const line = element("tr");
        line.append(named("td", row[0], sought), ...row.slice(1).map((value) => element("td", shown(value))));
        return line;
      })
    );
    at("more").hidden = kept.length <= most;
    at("filtered").textContent = `${Math.min(most, kept.length)} of ${kept.length} features`;
    markSorted(at("feature-table").tHead, column, falling);
  }
  function markSorted(head, chosen, down) {
    [...head.rows[0].cells].forEach((cell, i) => {
      cell.setAttribute("aria-sort", i === chosen ? (down ? "descending" : "ascending") : "none");
    });
  }
  const head = element("tr");
  ["feature", ...data.topics].forEach((name, i) => {
    const cell = element("th");
    cell.scope = "col";
    const button = element("button", name);
    button.type = "button";
    button.addEventListener("click", () => {
      falling = column === i ? !falling : i > 0;
      column = i;
      drawTable();
    });
    cell.append(button);
    head.append(cell);
  });
  at("feature-table").tHead.append(head);
  at("filter").addEventListener("input", drawTable);
  at("more").addEventListener("click", () => { most *= 4; drawTable(); });
  drawTable();

  // Tables of results are sorted by their text, which starts with a number or is a name.
  document.querySelectorAll("table.static").forEach((table) => {
    const number = (text) => parseFloat(text.replaceAll(",", ""));
    [...table.tHead.rows[0].cells].forEach((cell, i) => {
      cell.firstElementChild.addEventListener("click", () => {
        const down = cell.getAttribute("aria-sort") === "ascending";
        const lines = [...table.tBodies[0].rows];
        lines.sort((a, b) => {
          const texts = [a, b].map((line) => line.cells[i].textContent);
          const values = texts.map(number);
          const order = values.some(Number.isNaN) ? compare(...texts) : values[0] - values[1];
          return down ? -order : order;
        });
        table.tBodies[0].append(...lines);
        markSorted(table.tHead, i, down);
      });
    });
  });

  // Tables that are wider than the page say so, and can be scrolled by keys.
  function markWide() {
    document.querySelectorAll(".scroll").forEach((part) => {
      const wide = part.scrollWidth > part.clientWidth + 1;
      part.tabIndex = wide ? 0 : -1;
      part.classList.toggle("wide", wide);
    });
  }
  markWide();
  window.addEventListener("resize", markWide);

  // The Structure plot in the order of the chosen grouping; -1 is a gap.
  function drawStructure() {
    const { shares, names, topics, orders } = data.structure;
    const select = at("grouping");
    const { order, labels } = orders[select ? Number(select.value) : 0];
    const filled = { x: [], middle: [], name: [], text: [] };
    topics.forEach((_, k) => { filled[`y${k}`] = []; });
    filled[`y${topics.length}`] = [];
    order.forEach((sample, i) => {
      const values = sample < 0 ? topics.map(() => 0) : shares[sample];
      filled.x.push(i);
      filled.middle.push(i + 0.5);
      filled.name.push(sample < 0 ? "" : names[sample]);
      const largest = values.map((value, k) => [value, topics[k]]).sort((a, b) => b[0] - a[0]);
      filled.text.push(
        largest.filter(([value]) => value > 50).slice(0, 5)
          .map(([value, topic]) => `${topic} ${Math.round(value / 10)}%`).join(", ")
      );
      let sum = 0;
      topics.forEach((_, k) => { filled[`y${k}`].push(sum / 1000); sum += values[k]; });
      filled[`y${topics.length}`].push(sum / 1000);
    });
    const documents = Bokeh.documents;
    const chart = documents.map((each) => each.get_model_by_name("structure chart")).find(Boolean);
    chart.renderers[0].data_source.data = filled;
    chart.x_range.setv({ start: 0, end: order.length, reset_start: 0, reset_end: order.length });
    nameGroups(chart.below[0], labels, order.length);
  }

  // Write as many names of groups as have room, those of large groups first.
  function nameGroups(axis, labels, length) {
    const pixels = (at("structure").clientWidth - 60) / length;
    const apart = labels.slice(1).map(([, place], i) => pixels * (place - labels[i][1]));
    const upright = Math.min(...apart) < 26;
    const kept = [];
    [...labels].sort((a, b) => b[2] - a[2]).forEach((label) => {
      if (!upright || kept.every((each) => pixels * Math.abs(each[1] - label[1]) >= 13)) kept.push(label);
    });
    axis.ticker.ticks = kept.map(([, place]) => place);
    axis.major_label_overrides = new Map(kept.map(([text, place]) => [place, text]));
    axis.major_label_orientation = upright ? Math.PI / 2 : 0.6;
    at("named").textContent = kept.length < labels.length ? `${kept.length} of ${labels.length} groups are named.` : "";
  }
  function whenDrawn(call) {
    const there = Bokeh.documents.some((each) => each.get_model_by_name("structure chart"));
    if (there) call(); else setTimeout(() => whenDrawn(call), 20);
  }
  if (data.structure) {
    whenDrawn(drawStructure);
    const select = at("grouping");
    if (select) select.addEventListener("change", drawStructure);
    window.addEventListener("resize", () => whenDrawn(drawStructure));
  }
})();
