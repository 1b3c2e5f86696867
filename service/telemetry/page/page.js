// The status page: a snapshot every second, and requests and graph events as they happen, over server-sent events.
// Everything that comes from the worker is written as text, never as markup.
"use strict";

const RECENT = 100; // requests that the table keeps
const STRIP_S = 600; // what the timeline shows
const POLL_MS = 5000; // where the worker has no room for one more listener

const byId = (id) => document.getElementById(id);
const state = { status: null, before: null, recent: [] };
const drawn = new Map(); // what each part was drawn from: nothing is touched that has not changed

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function draw(id, data, make) {
  const text = JSON.stringify(data);
  if (drawn.get(id) !== text) {
    drawn.set(id, text);
    byId(id).replaceChildren(...make(data));
  }
}

// -- numbers as people read them

function seconds(value) {
  if (value >= 1) return `${Number(value.toPrecision(3))} s`;
  return `${Number((value * 1e3).toPrecision(3))} ms`;
}

function bytes(value) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (value < 1024) return `${Number(value.toPrecision(4))} ${unit}`;
    value /= 1024;
  }
  return `${Number(value.toPrecision(4))} GiB`;
}

const percent = (share) => `${(share * 100).toFixed(1)} %`;
const sizes = (bucket) => (bucket ? Object.entries(bucket).map(([axis, size]) => `${axis}=${size}`).join(",") : "");
const clock = (at) => new Date(at * 1000).toLocaleTimeString();
const full = (name, variant) => [name, ...Object.entries(variant || {}).map(([key, value]) => `${key}=${value}`)].join(" ");
const volume = (bucket) => Object.values(bucket).reduce((product, size) => product * size, 1);
const total = (outcomes) => Object.values(outcomes).reduce((sum, count) => sum + count, 0);

function row(...cells) {
  return element("tr", {}, ...cells.map((cell) => (cell instanceof Node ? cell : element("td", { textContent: cell }))));
}

const number = (text) => element("td", { className: "number", textContent: text });
const tight = (text) => element("td", { className: "tight", textContent: text });

// -- the parts

const chosen = () => byId("model").value;
const wanted = (items, name = "model") => items.filter((item) => !chosen() || item[name] === chosen());

function show() {
  const status = state.status;
  if (!status) return;
  byId("worker").textContent = `${status.worker} on ${status.device}, ${status.ready ? "serving" : "not serving"}, version ${status.program}`;
  draw("model", status.models.map((model) => model.name), options);
  draw("alarms", status.models.filter((model) => model.alarm).map((model) => [model.name, model.alarm]), alarms);
  draw("figures", figures(status), (found) => found.map(([name, value]) => element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }))));
  draw("budget", meters(status), (found) => found.map(meter));
  draw("reasons", reasons(status), (found) => found.map(reasonRow));
  draw("map", groups(wanted(status.graphs)), (found) => found.flatMap(mapOf));
  draw("traffic", [groups(wanted(status.sizes)), serving(status)], ([found, graphs]) => found.flatMap((group) => trafficOf(group, graphs)));
  draw("timeline", wanted(status.events).slice().reverse(), (found) => found.map(eventRow));
  draw("strip", wanted(status.events).filter((event) => status.at - event.at < STRIP_S).map((event) => [event.happening, Math.round(1000 * (1 - (status.at - event.at) / STRIP_S)) / 10, `${event.happening} ${event.model} ${sizes(event.bucket)}`]), strip);
  draw("recent", wanted(state.recent), (found) => found.map(recentRow));
}

function options(names) {
  const before = chosen();
  return ["", ...names].map((name) => element("option", { value: name, textContent: name || "all", selected: name === before }));
}

function alarms(found) {
  return found.map(([name, why]) => element("p", { textContent: `Graphs of ${name} are effectively off: ${why}` }));
}

function figures(status) {
  const models = wanted(status.models, "name");
  const sum = (of, from) => from.reduce((so_far, model) => so_far + of(model), 0);
  const count = (outcome) => (model) => model.outcomes[outcome] || 0;
  const replayed = sum(count("replay"), models);
  const executed = replayed + sum(count("eager"), models);
  const saved = sum((model) => model.saved_s - model.slower_s, models);
  const lost = sum((model) => model.reasons.reduce((so_far, reason) => so_far + reason.lost_s, 0), models);
  const before = state.before;
  const found = [];
  if (before && status.at > before.at) {
    const requests = sum((model) => total(model.outcomes), models) - sum((model) => total(model.outcomes), wanted(before.models, "name"));
    found.push(["Requests a second", Math.max(0, requests / (status.at - before.at)).toFixed(1)]);
  }
  found.push(["Replayed", executed ? `${percent(replayed / executed)} of ${executed}` : "no traffic yet"]);
  found.push(["Saved by replays", seconds(saved)], ["Lost to fallbacks", seconds(lost)]);
  found.push(["Device busy", percent(status.load.busy_ratio)], ["Waiting", String(status.load.waiting)]);
  found.push(["Backlog", seconds(Object.values(status.load.backlog_s).reduce((a, b) => a + b, 0))]);
  if (status.memory && status.memory.utilization !== null) found.push(["Device utilisation", percent(status.memory.utilization)]);
  return found;
}

function meters(status) {
  const found = [["Graphs", status.used, status.budget]];
  if (status.memory) found.push(["Device memory", status.memory.memory_used, status.memory.memory_total]);
  return found;
}

function meter([name, used, all]) {
  const text = `${name}: ${bytes(used)} of ${bytes(all)}`;
  const fill = element("span");
  fill.style.width = `${all ? Math.min(100, (100 * used) / all) : 0}%`;
  return element("div", { className: "meter" }, element("p", { textContent: text }), element("div", { ariaHidden: "true" }, fill));
}

function reasons(status) {
  return wanted(status.models, "name")
    .flatMap((model) => model.reasons.map((reason) => ({ model: model.name, ...reason })))
    .sort((a, b) => b.lost_s - a.lost_s || b.requests - a.requests);
}

function reasonRow(found) {
  return row(found.model, tight(found.reason), number(found.requests), number(seconds(found.lost_s)), found.detail, found.hint);
}

function groups(items) {
  const found = new Map();
  for (const item of items) {
    const name = full(item.model, item.variant);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(item);
  }
  return [...found];
}

function mapOf([name, graphs]) {
  const most = Math.max(1, ...graphs.map((graph) => graph.hits));
  const cells = graphs.map((graph) => {
    const lines = graph.state === "serving"
      ? [`${graph.hits} replays`, bytes(graph.bytes), `padding ${percent(graph.padding_ratio)}`, `saved ${seconds(Math.max(0, graph.saved_s))}`]
      : [graph.reason];
    const cell = element("li", { className: graph.state }, element("strong", { textContent: sizes(graph.bucket) }),
      element("span", { textContent: [graph.pinned ? `${graph.state}, pinned` : graph.state, ...lines].filter(Boolean).join(" · ") }));
    if (graph.state === "serving") cell.style.backgroundColor = `rgba(var(--replay), ${(0.3 * graph.hits) / most})`;
    return cell;
  });
  return [element("h3", { textContent: name }), element("ul", { className: "cells" }, ...cells)];
}

function serving(status) {
  return status.graphs.filter((graph) => graph.state === "serving").map((graph) => `${full(graph.model, graph.variant)} ${sizes(graph.bucket)}`);
}

function trafficOf([name, counts], graphs) {
  const buckets = new Map();
  for (const count of counts) {
    const key = count.bucket ? sizes(count.bucket) : "no bucket";
    if (!buckets.has(key)) buckets.set(key, { volume: count.bucket ? volume(count.bucket) : Infinity, counts: [] });
    buckets.get(key).counts.push(count);
  }
  const most = Math.max(...counts.map((count) => count.runs));
  const boxes = [...buckets].sort((a, b) => a[1].volume - b[1].volume).map(([key, found]) => {
    const bars = found.counts.sort((a, b) => volume(a.size) - volume(b.size)).map((count) => {
      const bar = element("i", { title: `${sizes(count.size)}: ${count.runs} runs` });
      bar.style.height = `${(100 * count.runs) / most}%`;
      return bar;
    });
    const runs = found.counts.reduce((sum, count) => sum + count.runs, 0);
    const box = element("div", { className: graphs.includes(`${name} ${key}`) ? "serving" : "" },
      element("div", { className: "bars", ariaHidden: "true" }, ...bars), element("div", { textContent: key }), element("div", { textContent: `${runs} runs` }));
    return box;
  });
  const histogram = element("div", { className: "histogram", role: "group", tabIndex: 0, ariaLabel: `Traffic of ${name} by bucket` }, ...boxes);
  return [element("h3", { textContent: name }), histogram];
}

function eventRow(event) {
  const took = event.seconds ? seconds(event.seconds) : "";
  return row(tight(clock(event.at)), event.happening, full(event.model, event.variant), tight(sizes(event.bucket)), number(took), number(event.bytes ? bytes(event.bytes) : ""), event.detail);
}

function strip(found) {
  return found.map(([happening, left, title]) => {
    const mark = element("i", { className: happening, title });
    mark.style.left = `${left}%`;
    return mark;
  });
}

function recentRow(found) {
  return row(tight(clock(found.at)), full(found.model, found.variant), tight(sizes(found.shape)), found.outcome, tight(found.reason || ""),
    number(seconds(found.total_s)), found.detail, found.hint, [found.request_id, found.trace_id].filter(Boolean).join(" "));
}

// -- the connection

function taken(status) {
  state.before = state.status;
  state.status = status;
  show();
}

function connected(text, lost) {
  byId("connection").textContent = text;
  byId("connection").classList.toggle("lost", lost);
}

async function poll() {
  try {
    taken(await (await fetch("/status.json")).json());
    connected("many are listening: looking every 5 seconds", false);
  } catch {
    connected("the worker does not answer", true);
  }
  setTimeout(poll, POLL_MS);
}

function listen() {
  const source = new EventSource("/events");
  source.addEventListener("open", () => {
    state.recent = []; // the worker tells of the latest ones anew
    connected("live", false);
  });
  source.addEventListener("status", (event) => taken(JSON.parse(event.data)));
  source.addEventListener("entries", (event) => {
    const requests = JSON.parse(event.data).filter((entry) => "outcome" in entry);
    state.recent = [...requests.reverse(), ...state.recent].slice(0, RECENT);
    show();
  });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) poll();
    else connected("the worker does not answer; trying again", true);
  });
}

byId("model").addEventListener("change", () => {
  drawn.delete("model");
  show();
});
listen();
