// The page at /: asks /v1/drift/state once a second and draws what it says; nothing comes from elsewhere.
// Whatever a model, a client or a name says is put in as text (textContent), never as markup.
"use strict";

const POLL_MS = 1000;
const NOW_S = 60;            // what "now" means in the tiles
const SMOOTH_SPANS = 5;      // a point of the curve is the mean over so many spans
const TEXT_MAX = 200000;     // characters of an answer that are shown
const PARTS = [["prefill", "prefill"], ["draft", "draft"], ["verify", "verify"], ["sample", "judging"], ["overhead", "bank"]];
const MODES = [["", "as the server does"], ["off", "off (plain)"], ["static", "static"], ["drift", "drift"], ["lookup", "lookup"],
  ["suffix", "suffix"], ["draft+suffix", "draft+suffix"], ["drift+suffix", "drift+suffix"]];

const $ = (id) => document.getElementById(id);
const page = { key: "", locked: false, range: "recent", state: null, hover: null, spanAt: () => null, colours: new Map(), known: false,
  rows: new Map(), tenants: new Map() };

// ---- making things ----

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function shape(tag, attributes, className, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (className) element.setAttribute("class", className);
  if (text !== undefined) element.textContent = text;
  return element;
}

function set(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

const sum = (list, from = 0) => list.slice(Math.max(0, from)).reduce((a, b) => a + b, 0);
const ratio = (a, b) => (b > 0 ? a / b : null);
const percent = (x) => (x === null ? "–" : (100 * x).toFixed(x > 0 && x < 0.0995 ? 1 : 0) + "\u00a0%");
const grouped = (n) => Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; ++unit; }
  return (unit === 0 || n >= 100 ? n.toFixed(0) : n.toFixed(1)) + " " + units[unit];
}

function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return s + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " d";
}

// A colour of its own for each name, the same as long as the page is open; those beyond the palette share the last.
function colour(name) {
  if (!page.colours.has(name)) page.colours.set(name, Math.min(page.colours.size, 6));
  return "k" + page.colours.get(name);
}

// What a tenant's bank is called here; no name: its answers without one.
function label(tenant, name) {
  const own = name === "" ? "without a bank" : name;
  return tenant === "default" ? own : tenant + "/" + own;
}

// Its tenants, in order: of what was used, and of banks that are open.
const tenantsOf = (state) => [...new Set([...state.history.banks, ...state.banks].map((bank) => bank.tenant))].sort();

// ---- asking ----

function headers(more) {
  return page.key ? { ...more, Authorization: "Bearer " + page.key } : { ...more };
}

function status(kind, text) {
  $("status").className = "status " + kind;
  set("status-text", text);
}

async function poll() {
  const range = page.range;
  const answer = await fetch("v1/drift/state?history=" + range, { headers: headers(), cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) {
    $("key-error").textContent = answer.status === 403 ? "That key is a tenant's; the page needs an operator's." : page.key ? "The server does not know that key." : "";
    $("key-form").hidden = false;
    page.key = "";
    page.locked = true;  // until somebody gives another: asking on would fill the server's log
    return status("wait", "an API key is needed");
  }
  if (answer.status === 503) return status("wait", "the models are being loaded");
  if (!answer.ok) return status("down", "the server answers " + answer.status);
  const state = await answer.json();
  $("key-form").hidden = true;
  if (range !== page.range) return;
  page.state = state;
  status(state.draining ? "wait" : "up", state.draining ? "shutting down" : "up " + span(state.history.now_s));
  draw();
}

async function pollForEver() {
  for (;;) {
    if (!document.hidden && !page.locked) {
      try {
        await poll();
      } catch (error) {
        if (error instanceof TypeError) status("down", "the server cannot be reached");
        else { status("down", "this page failed: " + error.message); console.error(error); }
      }
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

// ---- the tiles ----

// The sums of what happened lately; of everything, where nothing has.
function lately(history) {
  const spans = Math.ceil(NOW_S / history.width_s);
  const out = { lately: true, said: history.width_s <= NOW_S ? "last minute" : "last " + span(history.width_s) };
  const steps = history.spans.steps;
  for (const [name, list] of Object.entries(history.spans)) out[name] = sum(list, steps.length - spans);
  if (out.steps > 0) return out;
  return { ...history.all, lately: false, said: "since the start; idle now" };
}

function drawTiles(state) {
  const history = state.history, now = lately(history);
  const factor = ratio(now.plain_ms, now.compared_ms);
  set("speedup", factor === null ? "–" : factor.toFixed(2) + "×");
  const sizes = history.plain.map((p) => p.answers).join(", ");
  const plainSteps = sum(history.plain.map((p) => p.steps));
  if (!state.draft && now.verifications === 0) {
    set("speedup-note", "no draft: this server decodes plainly");
  } else if (factor !== null) {
    const share = ratio(now.compared_ms, now.step_ms);
    set("speedup-note", `${now.said}: ${percent(share)} of the time in steps could be compared, with ${grouped(plainSteps)} plain steps measured here (${sizes} at once)`);
  } else if (history.plain.length > 0) {
    set("speedup-note", `${now.said}: no step as large as the plain ones measured here (${sizes} at once)`);
  } else {
    set("speedup-note", "not measured: it takes some plain steps. Try it below with mode off");
  }
  const length = ratio(now.verified_tokens, now.verifications);
  set("length", length === null ? "–" : length.toFixed(2));
  set("length-note", length === null ? "plain decoding gives 1" : `${now.said}; plain decoding gives 1. The speed-up if drafting cost nothing`);
  set("acceptance", percent(ratio(now.accepted, now.drafted)));
  set("acceptance-note", now.drafted > 0
    ? `${now.said}: of ${grouped(now.drafted)} proposals; ${percent(ratio(now.accepted_bank, now.accepted))} of the accepted thanks to a bank`
    : "nothing was proposed yet");
  const rate = ratio(1000 * now.tokens, now.step_ms);
  set("rate", rate === null ? "–" : rate < 100 ? rate.toFixed(1) : grouped(rate));
  const busy = state.slots.filter((slot) => slot.phase !== "idle").length;
  set("rate-note", `while decoding, all answers together; ${busy} of ${state.slots.length} slots at work, ${state.waiting} waiting`);
}

// ---- acceptance over time ----

// Means over the spans around, weighted by proposals; null where nothing was proposed.
function smooth(accepted, drafted) {
  return drafted.map((_, i) => {
    if (sum(drafted.slice(Math.max(0, i - SMOOTH_SPANS + 1), i + 1)) === 0) return null;
    const from = Math.max(0, i - SMOOTH_SPANS + 1);
    return ratio(sum(accepted.slice(from, i + 1)), sum(drafted.slice(from, i + 1)));
  });
}

// A curve for each tenant; for each bank where there is one tenant only.
function curvesOf(state) {
  const used = state.history.banks.filter((bank) => bank.all.drafted > 0), several = tenantsOf(state).length > 1;
  const groups = new Map();
  for (const bank of used) {
    const name = several ? bank.tenant : label(bank.tenant, bank.name);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(bank.spans);
  }
  const together = (spans, what) => spans[0][what].map((_, i) => sum(spans.map((one) => one[what][i])));
  const curves = [...groups].map(([name, spans]) => (
    { name, className: colour(name), values: smooth(together(spans, "accepted"), together(spans, "drafted")) }));
  return curves.filter((curve) => curve.values.some((value) => value !== null));
}

function path(values, x, y) {
  let out = "", pen = false;
  values.forEach((value, i) => {
    if (value === null) { pen = false; return; }
    out += (pen ? "L" : "M") + x(i).toFixed(1) + " " + y(value).toFixed(1);
    // A lone point is a dot: a line of no length with round ends.
    if (!pen && (values[i + 1] === null || values[i + 1] === undefined)) out += "h0";
    pen = true;
  });
  return out;
}

function empty(svg, width, height, text) {
  svg.append(shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "empty", text));
}

function canvas(box) {
  const width = Math.max(200, box.clientWidth), height = box.clientHeight;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  box.replaceChildren(svg);
  return { svg, width, height };
}

function drawAcceptance(state) {
  const history = state.history;
  const { svg, width, height } = canvas($("acceptance-chart"));
  const left = 42, right = 10, top = 12, bottom = 22;
  const plotWidth = width - left - right, count = history.spans.steps.length;
  const all = Math.max(history.now_s - history.from_s, 30), from = history.now_s - all;
  const atTime = (t) => left + plotWidth * (t - from) / all;
  const x = (i) => atTime(Math.min(history.from_s + (i + 1) * history.width_s, history.now_s));  // a span stands where it ends
  const y = (value) => top + (height - top - bottom) * (1 - value);
  for (const value of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(shape("line", { x1: left, x2: width - right, y1: y(value), y2: y(value) }, value === 0 ? "axis" : "grid"));
    svg.append(shape("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, "", Math.round(100 * value) + " %"));
  }
  for (const share of [0, 0.5, 1]) {
    const ago = history.now_s - (from + share * all);
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    const text = ago <= 1 ? "now" : span(ago) + " ago";
    svg.append(shape("text", { x: left + share * plotWidth, y: height - 5, "text-anchor": anchor }, "", text));
  }
  const shown = history.shifts.filter((mark) => mark.at_s >= from);
  for (const mark of shown) {
    const at = atTime(mark.at_s);
    svg.append(shape("line", { x1: at, x2: at, y1: top, y2: height - bottom }, "shift"));
    svg.append(shape("path", { d: `M${at} ${top - 10}l9 4.5l-9 4.5z` }, "shift-flag"));
  }
  const curves = curvesOf(state);
  for (const curve of curves) {
    svg.append(shape("path", { d: path(curve.values, x, y) }, "line " + curve.className));
    const last = curve.values.length - 1;
    if (curve.values[last] !== null) svg.append(shape("circle", { cx: x(last), cy: y(curve.values[last]), r: 3.5 }, "end " + curve.className));
  }
  if (curves.length === 0) empty(svg, width, height, "nothing was proposed in this time");
  svg.setAttribute("aria-label", "Acceptance over time: " + curves.map((c) => `${c.name} ${percent(latest(c.values))}`).join(", "));
  drawLegend(history, curves, count);
  if (page.hover !== null && page.hover < count)
    svg.append(shape("line", { x1: x(page.hover), x2: x(page.hover), y1: top, y2: height - bottom }, "cross"));
  page.spanAt = (clientX) => {
    const box = svg.getBoundingClientRect();
    const t = from + all * ((clientX - box.left) * (width / box.width) - left) / plotWidth;
    return Math.max(0, Math.min(count - 1, Math.floor((t - history.from_s) / history.width_s)));
  };
  $("shifts").replaceChildren(...shown.slice(-5).reverse().map((mark) => make("li", "",
    `⚑ ${span(history.now_s - mark.at_s)} ago: a shift in the traffic of ${mark.tenant}: acceptance, given that all before stood, fell from ` +
    `${percent(mark.acceptance_before)} to ${percent(mark.acceptance_now)}`)));
}

function latest(values) {
  for (let i = values.length - 1; i >= 0; --i) if (values[i] !== null) return values[i];
  return null;
}

function drawLegend(history, curves, count) {
  const at = page.hover !== null && page.hover < count ? page.hover : null;
  const items = curves.map((curve) => {
    const item = make("li");
    item.append(make("span", "swatch " + curve.className), make("span", "", curve.name));
    item.append(make("b", "", percent(at === null ? latest(curve.values) : curve.values[at])));
    return item;
  });
  if (at !== null) items.push(make("li", "", span(history.now_s - history.from_s - (at + 1) * history.width_s) + " ago"));
  $("acceptance-legend").replaceChildren(...items);
}

// ---- by position ----

function drawPositions(positions) {
  const { svg, width, height } = canvas($("positions"));
  const recent = positions.recent, all = positions.all, count = all.tested.length;
  if (count === 0) return empty(svg, width, height, "nothing was proposed yet");
  const left = 42, top = 20, bottom = 22;
  const y = (value) => top + (height - top - bottom) * (1 - value);
  for (const value of [0, 0.5, 1]) {
    svg.append(shape("line", { x1: left, x2: width, y1: y(value), y2: y(value) }, value === 0 ? "axis" : "grid"));
    svg.append(shape("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, "", Math.round(100 * value) + " %"));
  }
  const step = (width - left) / count, bar = Math.min(56, step * 0.62);
  for (let i = 0; i < count; ++i) {
    const middle = left + step * (i + 0.5);
    const now = ratio(recent.accepted[i] ?? 0, recent.tested[i] ?? 0), ever = ratio(all.accepted[i], all.tested[i]);
    if (now !== null) svg.append(shape("rect", { x: middle - bar / 2, width: bar, y: y(now), height: Math.max(0, y(0) - y(now)), rx: 3 }, "bar"));
    svg.append(shape("line", { x1: middle - bar / 2 - 4, x2: middle + bar / 2 + 4, y1: y(ever), y2: y(ever) }, "since"));
    if (step > 34) svg.append(shape("text", { x: middle, y: y(Math.max(now ?? 0, ever)) - 6, "text-anchor": "middle" }, "value", percent(now ?? ever)));
    if (step > 14 || i % 4 === 0) svg.append(shape("text", { x: middle, y: height - 5, "text-anchor": "middle" }, "", String(i + 1)));
  }
  svg.setAttribute("aria-label", "Acceptance by position: " + all.tested.map((_, i) => percent(ratio(all.accepted[i], all.tested[i]))).join(", "));
}

// ---- slots ----

function slotText(slot) {
  if (slot.phase === "prefill") return `prompt ${slot.n_prompt_tokens_processed} of ${slot.n_prompt_tokens}`;
  if (slot.phase === "decode") return `${slot.mode}, ${grouped(slot.n_decoded)} tokens`;
  return "idle";
}

function strip(parts, widthMs) {
  const count = 30;
  const svg = shape("svg", { viewBox: `0 0 ${count} 1`, preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(shape("rect", { x: 0, y: 0, width: count, height: 1 }, "cell s-idle"));
  if (!parts) return svg;
  const length = parts.verify_ms.length;
  for (let i = 0; i < length; ++i) {
    let bottom = 1;
    for (const [name] of PARTS) {
      const height = Math.min(bottom, parts[name + "_ms"][i] / widthMs);
      if (height < 0.002) continue;
      bottom -= height;
      svg.append(shape("rect", { x: count - length + i + 0.04, y: bottom, width: 0.92, height }, "cell s-" + name));
    }
  }
  return svg;
}

function drawSlots(state) {
  const slots = state.history.slots;
  $("slots").replaceChildren(...state.slots.map((slot) => {
    const row = make("div", "slot"), text = make("p");
    text.append(make("b", "", "slot " + slot.id), document.createElement("br"), make("span", "", slotText(slot)));
    row.append(text, strip(slots.of[slot.id], 1000 * slots.width_s));
    return row;
  }));
  const totals = PARTS.map(([name]) => sum(slots.of.map((parts) => sum(parts[name + "_ms"]))));
  const busy = sum(totals);
  $("slots-legend").replaceChildren(...PARTS.map(([name, label], i) => {
    const item = make("li");
    item.append(make("span", "swatch square s-" + name), make("span", "", label), make("b", "", percent(ratio(totals[i], busy))));
    return item;
  }));
}

// ---- banks ----

// Proposals and hits of a bank: lately, or ever where there was none lately.
function workOf(used, name) {
  if (!used) return 0;
  return sum(used.spans.lookups) + sum(used.spans.drafted) > 0 ? sum(used.spans[name]) : used.all[name];
}

async function change(bank, method, action, body) {
  const path = "v1/drift/banks/" + encodeURIComponent(bank.name) + "/" + action + "?tenant=" + encodeURIComponent(bank.tenant);
  const answer = await fetch(path, { method, headers: headers(body ? { "Content-Type": "application/json" } : {}), body });
  if (!answer.ok) {
    const problem = await answer.json().catch(() => null);
    throw new Error(problem?.error?.message ?? "the server answers " + answer.status);
  }
  return answer;
}

async function exportBank(bank) {
  const file = await (await change(bank, "GET", "export")).blob();
  const link = make("a");
  link.href = URL.createObjectURL(file);
  link.download = (bank.tenant === "default" ? "" : bank.tenant + "-") + bank.name + ".bank";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);  // the browser may begin to read it later
  return "exported, " + bytes(file.size);
}

const ACTIONS = {
  freeze: async (bank) => {
    await change(bank, "POST", "freeze", JSON.stringify({ on: !bank.frozen }));
    return bank.frozen ? "learns again" : "is frozen: it proposes as before and learns nothing";
  },
  export: exportBank,
  reset: async (bank) => {
    if (!confirm(`Empty the bank ${label(bank.tenant, bank.name)}? Its ${grouped(bank.entries)} entries are gone, from its file too with the next save.`)) return "";
    await change(bank, "POST", "reset");
    return "is empty";
  },
};

async function act(row, action) {
  const bank = row.bank, name = label(bank.tenant, bank.name);
  row.buttons[action].disabled = true;
  let said = "", failed = false;
  try {
    said = await ACTIONS[action](bank);
    await poll();
  } catch (error) {
    failed = true;
    said = error.message;
  }
  row.buttons[action].disabled = false;
  $("banks-said").classList.toggle("error", failed);
  if (said !== "") set("banks-said", name + (failed ? ": it could not be done: " : " ") + said);
}

// Rows stay the same elements from draw to draw: a button that is replaced while it is pressed is never clicked.
function bankRow(bank) {
  const key = bank.tenant + "/" + bank.name;
  if (page.rows.has(key)) return page.rows.get(key);
  const row = { element: make("tr"), cells: [], buttons: {}, bank };
  for (let i = 0; i < 9; ++i) row.cells.push(row.element.appendChild(make("td")));
  row.name = row.cells[0].appendChild(make("span"));
  row.said = row.cells[0].appendChild(make("span", "said"));
  const entries = row.cells[1];
  row.entries = entries.appendChild(make("span"));
  row.fill = entries.appendChild(make("span", "fill")).appendChild(make("span"));
  const cell = row.element.appendChild(make("td", "actions"));
  for (const action of Object.keys(ACTIONS)) {
    const button = cell.appendChild(make("button", "", action));
    button.type = "button";
    button.addEventListener("click", () => act(row, action));
    row.buttons[action] = button;
  }
  page.rows.set(key, row);
  return row;
}

function drawBank(state, bank, several) {
  const history = state.history, row = bankRow(bank);
  const used = history.banks.find((one) => one.tenant === bank.tenant && one.name === bank.name);
  row.bank = bank;
  const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  put(row.name, several ? bank.name : label(bank.tenant, bank.name));  // its tenant stands above it
  put(row.said, [bank.frozen && "frozen", bank.shared && "shared"].filter(Boolean).join(", "));
  put(row.entries, bank.capacity > 0 ? `${grouped(bank.entries)} of ${grouped(bank.capacity)}` : grouped(bank.entries));
  row.fill.parentElement.hidden = bank.capacity === 0;
  row.fill.style.width = (100 * bank.entries / Math.max(1, bank.capacity)).toFixed(1) + "%";
  const file = bank.last_save_error ? "not saved: " + bank.last_save_error : bank.file ? (bank.saves > 0 ? `saved ${grouped(bank.saves)}×` : "not saved yet") : "memory only";
  const rest = [bytes(bank.bytes), percent(ratio(workOf(used, "hits"), workOf(used, "lookups"))),
    percent(ratio(workOf(used, "accepted"), workOf(used, "drafted"))), percent(ratio(workOf(used, "accepted_bank"), workOf(used, "accepted"))),
    used ? span(history.now_s - used.first_s) : "not used yet", used ? span(history.now_s - used.last_s) + " ago" : "–", file];
  rest.forEach((text, i) => put(row.cells[i + 2], text));
  put(row.buttons.freeze, bank.frozen ? "thaw" : "freeze");
  const name = label(bank.tenant, bank.name);
  for (const [action, button] of Object.entries(row.buttons)) button.setAttribute("aria-label", `${button.textContent} ${name}`);
  return row.element;
}

// What a tenant's answers came to, with a bank or without.
function tenantRow(state, tenant) {
  if (!page.tenants.has(tenant)) {
    const row = make("tr", "tenant"), cell = row.appendChild(make("th"));
    cell.colSpan = 10;
    page.tenants.set(tenant, row);
  }
  const used = state.history.banks.filter((bank) => bank.tenant === tenant);
  const all = (name) => sum(used.map((bank) => workOf(bank, name)));
  const text = `${tenant}: acceptance ${percent(ratio(all("accepted"), all("drafted")))} of ${grouped(all("drafted"))} proposals`;
  const cell = page.tenants.get(tenant).firstChild;
  if (cell.textContent !== text) cell.textContent = text;
  return page.tenants.get(tenant);
}

function drawBanks(state) {
  const rows = [], tenants = tenantsOf(state);
  for (const tenant of tenants) {
    if (tenants.length > 1) rows.push(tenantRow(state, tenant));
    for (const bank of state.banks) if (bank.tenant === tenant) rows.push(drawBank(state, bank, tenants.length > 1));
  }
  if (state.banks.length === 0) {
    const row = make("tr"), cell = row.appendChild(make("td", "none", "no bank is open"));
    cell.colSpan = 10;
    rows.push(row);
  }
  const body = $("banks");
  if (rows.length !== body.children.length || rows.some((row, i) => row !== body.children[i])) body.replaceChildren(...rows);
  for (const key of page.rows.keys()) if (!rows.includes(page.rows.get(key).element)) page.rows.delete(key);
  for (const tenant of page.tenants.keys()) if (!tenants.includes(tenant)) page.tenants.delete(tenant);
}

// ---- everything ----

function draw() {
  const state = page.state;
  set("about", `${state.model} · ${state.draft ? `mode ${state.mode}, ${state.draft_tokens} tokens a block` : "no draft"} · ${state.version}`);
  document.title = state.model + " – drift serve";
  if (!page.known) offer(state);
  drawTiles(state);
  drawAcceptance(state);
  drawPositions(state.history.positions);
  drawSlots(state);
  drawBanks(state);
}

// ---- trying it ----

function offer(state) {
  page.known = true;
  const needsDraft = (mode) => mode.includes("static") || mode.startsWith("dr");
  for (const [value, text] of MODES) {
    if (!state.draft && needsDraft(value)) continue;
    const option = make("option", "", text);
    option.value = value;
    $("mode").append(option);
  }
  if (!state.chat_template) $("as").querySelector("[value=chat]").disabled = true;
}

const trying = { stop: null, counts: {}, decoder: null, shown: 0 };

function count(kind, by) {
  trying.counts[kind] = (trying.counts[kind] ?? 0) + by;
  set("n-" + kind, grouped(trying.counts[kind]));
}

const plainText = (token) => new TextDecoder().decode(new Uint8Array(token.bytes)).replaceAll("\n", "↵");

function showToken(token) {
  const answer = $("answer");
  const follow = answer.scrollTop + answer.clientHeight > answer.scrollHeight - 30;
  const origin = ["accepted", "accepted_bank"].includes(token.origin) ? token.origin : "target";
  count(origin, 1);
  if (token.rejected.length > 0) {
    count("rejected", token.rejected.length);
    const rejected = make("del", "o-rejected", token.rejected.map(plainText).join(""));
    rejected.title = token.rejected.length + " rejected";
    answer.append(rejected);
  }
  // A token may end in the middle of a character: its rest comes with the next.
  const text = trying.decoder.decode(new Uint8Array(token.bytes), { stream: true });
  trying.shown += text.length;
  if (text !== "" && trying.shown < TEXT_MAX) {
    const shown = make("span", "o-" + origin, text);
    shown.title = `${origin.replace("_", " thanks to the ")}: token ${token.id}`;
    answer.append(shown);
  }
  if (follow) answer.scrollTop = answer.scrollHeight;
}

// The events of a stream, one after the other. Their lines end in one way only: the server is ours.
async function* events(body) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const whole = rest.split("\n\n");
    rest = whole.pop();
    for (const event of whole) {
      if (!event.startsWith("data: ")) continue;  // a sign of life
      if (event === "data: [DONE]") return;
      yield JSON.parse(event.slice(6));
    }
  }
}

function requestBody() {
  const chat = $("as").value === "chat", text = $("prompt").value;
  const drift = { origins: true };
  if ($("mode").value !== "") drift.mode = $("mode").value;
  if ($("bank").value !== "" && $("bank").value !== "default") drift.bank = $("bank").value;
  const body = { stream: true, max_tokens: Number($("tokens").value), temperature: Number($("temperature").value), drift };
  if (chat) body.messages = [{ role: "user", content: text }];
  else body.prompt = text;
  return body;
}

function figures(chunk, started) {
  const t = chunk.timings;
  if (!t) return;
  let text = `${grouped(t.predicted_n)} tokens in ${(t.predicted_ms / 1000).toFixed(2)} s, ${t.predicted_per_second.toFixed(1)} a second`;
  if (t.draft_n > 0) {
    const steps = chunk.metrics?.speculative_decoding?.num_spec_steps ?? 0;
    text += `; ${percent(ratio(t.draft_n_accepted, t.draft_n))} of ${grouped(t.draft_n)} proposals accepted, ${grouped(t.draft_n_accepted_bank)} thanks to the bank` +
      (steps > 0 ? `; ${(t.predicted_n / steps).toFixed(2)} tokens a verification` : "");
  }
  set("figures", text + `. ${((performance.now() - started) / 1000).toFixed(2)} s as this page saw it`);
}

async function ask(signal) {
  const started = performance.now(), body = requestBody();
  const answer = await fetch(body.messages ? "v1/chat/completions" : "v1/completions",
    { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal });
  if (!answer.ok) {
    const problem = await answer.json().catch(() => null);
    throw new Error(problem?.error?.message ?? "the server answers " + answer.status);
  }
  for await (const chunk of events(answer.body)) {
    if (chunk.error) throw new Error(chunk.error.message);
    for (const choice of chunk.choices ?? []) for (const token of choice.drift?.tokens ?? []) showToken(token);
    figures(chunk, started);
  }
}

async function tryIt() {
  const answer = $("answer");
  answer.replaceChildren();
  answer.classList.remove("idle");
  if ($("as").value === "text") answer.append(make("span", "asked", $("prompt").value));
  Object.assign(trying, { stop: new AbortController(), counts: {}, decoder: new TextDecoder(), shown: 0 });
  for (const kind of ["target", "accepted", "accepted_bank", "rejected"]) count(kind, 0);
  set("figures", "");
  $("go").disabled = true;
  $("stop").disabled = false;
  try {
    await ask(trying.stop.signal);
  } catch (error) {
    if (error.name === "AbortError") set("figures", "stopped");
    else { set("figures", error.message); $("figures").classList.add("error"); }
  }
  $("go").disabled = false;
  $("stop").disabled = true;
}

// ---- at the start ----

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  page.key = $("key").value;
  page.locked = false;
  $("key").value = "";
  poll().catch(() => {});
});
$("try-form").addEventListener("submit", (event) => {
  event.preventDefault();
  $("figures").classList.remove("error");
  tryIt();
});
$("stop").addEventListener("click", () => trying.stop?.abort());
$("show-rejected").addEventListener("change", (event) => $("answer").classList.toggle("no-rejected", !event.target.checked));
for (const button of document.querySelectorAll("[data-range]")) {
  button.addEventListener("click", () => {
    page.range = button.dataset.range;
    page.hover = null;
    for (const other of document.querySelectorAll("[data-range]")) other.setAttribute("aria-pressed", String(other === button));
    poll().catch(() => {});
  });
}
function hover(at) {
  page.hover = at;
  if (page.state) drawAcceptance(page.state);
}
$("acceptance-chart").addEventListener("pointermove", (event) => hover(page.spanAt(event.clientX)));
$("acceptance-chart").addEventListener("pointerleave", () => hover(null));
addEventListener("resize", () => { if (page.state) draw(); });
$("answer").classList.add("idle");
$("answer").textContent = "The answer comes here, each token in the colour of where it came from.";
pollForEver();
