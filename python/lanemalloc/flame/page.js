// Draws the page's views from the data that it carries. Sizes are in the units of the values; a
// node of the tree has what its function and all that it called have.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const app = document.getElementById("app");
  const is_diff = Boolean(data.before);
  const kLeastWidth = 2; // pixels; what is narrower shows when its caller is the widest

  // --- Colours.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const tell_theme = () => theme.setAttribute("aria-pressed", String(chosen() === "dark"));
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = chosen() === "dark" ? "light" : "dark";
    tell_theme();
  });
  system.addEventListener("change", tell_theme);
  tell_theme();
  let theme_before;
  addEventListener("beforeprint", () => {
    theme_before = root.dataset.theme;
    root.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    if (theme_before) root.dataset.theme = theme_before;
    else delete root.dataset.theme;
  });

  // --- Numbers, as the command prints them.
  const three = (x) => (Math.abs(x) >= 99.95 ? x.toFixed(0) : Math.abs(x) >= 9.995 ? x.toFixed(1) : x.toFixed(2));
  const size = (x) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let at = 0;
    for (; Math.abs(x) >= 1023.5 && at < units.length - 1; x /= 1024) ++at;
    return (at === 0 ? x.toFixed(0) : three(x)) + "\u00a0" + units[at];
  };
  const time = (ns) => {
    for (const [unit, scale] of [["ns", 1], ["µs", 1e3], ["ms", 1e6]])
      if (Math.abs(ns) < scale * 1e3) return (scale === 1 ? ns.toFixed(0) : three(ns / scale)) + "\u00a0" + unit;
    return three(ns / 1e9) + "\u00a0s";
  };
  const count = (x) => Math.round(x).toLocaleString("en");
  const amount = (x, unit = data.types[state.kind].unit) => (unit === "bytes" ? size(x) : unit === "nanoseconds" ? time(x) : count(x));
  const signed = (x) => (x > 0 ? "+" : "") + amount(x);
  const share = (part, whole) => (whole ? three((100 * part) / whole) + "\u00a0%" : "-");

  // Of an object: exact where that is readable.
  const object_size = (bytes) => (bytes === 0 ? "not known" : bytes < 10000 ? `${count(bytes)}\u00a0B` : size(bytes));

  // --- What is looked at.
  const state = { view: "flame", kind: data.default, only: {}, zoom: [], query: "", moment: null };

  const pieces = (rows, kind, weight, add) => {
    for (const [stack, bytes, values, variances] of rows) {
      if (state.only.thread !== undefined && data.thread_of[stack] !== state.only.thread) continue;
      if (state.only.size !== undefined && bytes !== state.only.size) continue;
      add(stack, bytes, values[kind], variances[kind], weight);
    }
  };
  // Calls add(stack, size, value, variance, is_before) for each row that is looked at.
  const each_row = (add) => {
    if (state.moment !== null) {
      const live = data.moments[state.moment][1];
      for (let i = 0; i < live.length; i += 2)
        if (state.only.thread === undefined || data.thread_of[live[i]] === state.only.thread) add(live[i], 0, live[i + 1], 0, false);
      return;
    }
    pieces(data.rows, state.kind, false, add);
    if (is_diff) pieces(data.before, state.kind, true, add);
  };

  const node_of = (f, parent) => ({ f, parent, kids: new Map(), value: 0, own: 0, variance: 0, was: 0, was_own: 0, lay: 0, depth: parent ? parent.depth + 1 : 0 });
  const make_tree = () => {
    const top = node_of(-1, null);
    each_row((stack, bytes, value, variance, is_before) => {
      let node = top;
      const count_in = () => {
        if (is_before) node.was += value;
        else node.value += value;
        node.variance += variance;
      };
      count_in();
      for (const f of data.stacks[stack]) {
        if (!node.kids.has(f)) node.kids.set(f, node_of(f, node));
        node = node.kids.get(f);
        count_in();
      }
      if (is_before) node.was_own += value;
      else node.own += value;
    });
    const lay = (node) => {
      node.lay = Math.max(Math.abs(node.own), Math.abs(node.was_own));
      for (const kid of node.kids.values()) node.lay += lay(kid);
      return node.lay;
    };
    lay(top);
    return top;
  };
  const sorted_kids = (node) => [...node.kids.values()].filter((kid) => kid.lay > 0).sort((a, b) => b.lay - a.lay);
  const name_of = (node) => (node.f < 0 ? "all" : data.names[node.f][0]);
  const whole_of = (top) => Math.max(Math.abs(top.value), Math.abs(top.was)) || top.lay;

  const places = [...new Set(data.names.map((one) => one[1]))].filter((one) => one && one !== data.program);
  const colour_of = (node) => {
    if (node.f < 0) return 5;
    const place = data.names[node.f][1];
    return place === data.program ? 0 : place ? 1 + (places.indexOf(place) % 4) : 5;
  };
  // Of a change, in parts of the larger one; what is within two standard errors is no change.
  const change_of = (node) => {
    const change = node.value - node.was;
    if (Math.abs(change) <= 2 * Math.sqrt(node.variance)) return 0;
    return change / (Math.max(Math.abs(node.value), Math.abs(node.was)) || 1);
  };
  const mixed = (part) => {
    const percent = part === 0 ? 0 : 25 + 75 * Math.min(1, Math.abs(part));
    return `color-mix(in srgb, var(--${part > 0 ? "more" : "less"}) ${percent.toFixed(0)}%, var(--same))`;
  };
  const described = (node, top) => {
    const error = ` ± ${amount(Math.sqrt(node.variance))}`;
    const of = state.moment !== null ? "" : error;
    if (!is_diff) return `${amount(node.value)}${of} (${share(node.value, whole_of(top))}); itself ${amount(node.own)}`;
    const sure = change_of(node) === 0 && node.value !== node.was ? ", within two errors" : "";
    return `${amount(node.was)} before, ${amount(node.value)} after: ${signed(node.value - node.was)}${of}${sure}`;
  };

  const element = (tag, more = {}, ...kids) => {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(more)) {
      if (key === "class") made.className = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...kids);
    return made;
  };

  // --- The frame of the page.
  const tabs = element("div", { class: "tabs", role: "group", "aria-label": "Views" });
  const kinds = element("select", { onchange: () => { state.kind = Number(kinds.value); state.zoom = []; draw(); } });
  data.types.forEach((one, i) => kinds.append(element("option", { value: i }, one.label)));
  kinds.value = state.kind;
  const search = element("input", { type: "search", placeholder: "function or file", oninput: () => { state.query = search.value.trim().toLowerCase(); draw(); } });
  const found = element("output", { "aria-live": "polite" });
  const reset = element("button", { type: "button", onclick: () => { state.zoom = []; draw(); } }, "Show all");
  const controls = element("div", { class: "controls" }, element("label", {}, "Values", kinds), element("label", { class: "search" }, "Search", search), found, reset);
  const only = element("div", { class: "only" });
  const view = element("div", { class: "root" });
  const key = element("div", { class: "key root" });
  const detail = element("div", { class: "detail" });
  app.append(tabs, controls, only, view, key, detail);

  const views = [["flame", "Flame graph"], ["tree", "Tree"], ["threads", "Threads"], ["sizes", "Sizes"]];
  if (data.moments.length > 1) views.push(["time", "Over time"]);
  for (const [name, title] of views)
    tabs.append(element("button", { type: "button", "data-view": name, onclick: () => { state.view = name; draw(); } }, title));

  const tell = (node, top) => {
    detail.replaceChildren(element("b", {}, name_of(node)), ` ${described(node, top)}`);
    if (node.f < 0) return;
    const [, place, file] = data.names[node.f];
    detail.append(element("div", {}, [place, file].filter(Boolean).join(" · ")));
  };

  // --- Search.
  const is_hit = (node) => {
    if (!state.query || node.f < 0) return false;
    return data.names[node.f].some((text) => text.toLowerCase().includes(state.query));
  };
  const sum_of_hits = (node) => {
    if (is_hit(node)) return [node.value, node.was];
    const sum = [0, 0];
    for (const kid of node.kids.values()) sum_of_hits(kid).forEach((one, i) => { sum[i] += one; });
    return sum;
  };
  const tell_hits = (top) => {
    if (!state.query) { found.textContent = ""; return; }
    const [after, before] = sum_of_hits(top);
    found.textContent = is_diff ? `${amount(before)} before, ${amount(after)} after` : `${amount(after)}, ${share(after, whole_of(top))}`;
  };

  // --- Flame graph, the callers above.
  const draw_flame = (into, top) => {
    const path = [top];
    for (const f of state.zoom) {
      const next = path[path.length - 1].kids.get(f);
      if (!next) break;
      path.push(next);
    }
    const zoomed = path[path.length - 1];
    const width = into.clientWidth || view.clientWidth || 300;
    const high = matchMedia("(max-width: 45rem)").matches ? 26 : 22;
    const flame = element("div", { class: "flame", role: "group", "aria-label": "Flame graph: arrow keys go from function to function, Enter shows one over the whole width, Escape all" });
    if (state.query) flame.classList.add("searched");
    const nodes = new Map();
    let deepest = 0;
    const put = (node, left, part, is_above) => {
      deepest = Math.max(deepest, node.depth);
      const one = element("button", { type: "button", tabindex: -1, "aria-label": `${name_of(node)}: ${described(node, top)}` }, part * width > 28 ? name_of(node) : "");
      one.style.cssText = `left:${(100 * left).toFixed(4)}%;width:${(100 * part).toFixed(4)}%;top:${node.depth * high}px`;
      if (part * width <= 28) one.style.padding = "0";
      if (is_diff) one.style.background = mixed(change_of(node));
      else one.classList.add(`c${colour_of(node)}`);
      if (is_above) one.classList.add("above");
      if (is_hit(node)) one.classList.add("hit");
      one.addEventListener("mouseenter", () => tell(node, top));
      one.addEventListener("focus", () => tell(node, top));
      one.addEventListener("click", () => {
        state.zoom = path_to(node);
        draw();
        focus_on(node.depth);
      });
      nodes.set(node, one);
      flame.append(one);
    };
    for (const node of path.slice(0, -1)) put(node, 0, 1, true);
    const fill = (node, left, part) => {
      put(node, left, part, false);
      let at = left;
      for (const kid of sorted_kids(node)) {
        const kid_part = (part * kid.lay) / node.lay;
        if (kid_part * width >= kLeastWidth) fill(kid, at, kid_part);
        at += kid_part;
      }
    };
    fill(zoomed, 0, 1);
    flame.style.height = `${(deepest + 1) * high}px`;
    flame.addEventListener("keydown", (event) => move(event, nodes, top));
    nodes.get(zoomed).tabIndex = 0;
    into.append(flame);
    tell(zoomed, top);
  };
  const path_to = (node) => (node.f < 0 ? [] : [...path_to(node.parent), node.f]);
  const focus_on = (depth) => {
    const all = view.querySelector(".flame").children;
    if (all[depth]) all[depth].focus();
  };
  const move = (event, nodes, top) => {
    const here = [...nodes].find(([, one]) => one === document.activeElement);
    if (!here) return;
    const node = here[0];
    const beside = (step) => {
      const row = node.parent ? sorted_kids(node.parent).filter((one) => nodes.has(one)) : [node];
      return row[row.indexOf(node) + step];
    };
    if (event.key === "Escape") {
      state.zoom = [];
      draw();
      focus_on(0);
    }
    const next = { ArrowUp: node.parent, ArrowDown: sorted_kids(node).find((one) => nodes.has(one)), ArrowLeft: beside(-1), ArrowRight: beside(1) }[event.key];
    if (!(event.key in { ArrowUp: 1, ArrowDown: 1, ArrowLeft: 1, ArrowRight: 1 })) return;
    event.preventDefault();
    if (!next || !nodes.has(next)) return;
    here[1].tabIndex = -1;
    nodes.get(next).tabIndex = 0;
    nodes.get(next).focus();
  };

  // --- Tree.
  const draw_tree = (into, top) => {
    const list = element("ul", { class: "tree", "aria-label": "Tree of calls" });
    const row = (node, depth, open) => {
      const kids = sorted_kids(node);
      const button = element("button", { type: "button", style: `--depth:${depth}` }, name_of(node));
      if (is_hit(node)) button.classList.add("hit");
      const value = is_diff ? signed(node.value - node.was) : amount(node.value);
      const line = element("div", {}, element("span", { class: "v" }, value), element("span", { class: "e" }, state.moment === null ? `± ${amount(Math.sqrt(node.variance))}` : ""), element("span", { class: "p" }, is_diff ? share(node.value - node.was, whole_of(top)) : share(node.value, whole_of(top))), button);
      const item = element("li", {}, line);
      line.addEventListener("mouseenter", () => tell(node, top));
      button.addEventListener("focus", () => tell(node, top));
      if (!kids.length) return item;
      let inner = null;
      const set = (is_open) => {
        button.setAttribute("aria-expanded", String(is_open));
        if (is_open && !inner) {
          inner = element("ul");
          // A chain of single calls opens as a whole.
          kids.forEach((kid, i) => inner.append(row(kid, depth + 1, i === 0 && kid.lay > 0.5 * top.lay)));
          item.append(inner);
        }
        if (inner) inner.hidden = !is_open;
      };
      button.addEventListener("click", () => set(button.getAttribute("aria-expanded") !== "true"));
      set(open);
      return item;
    };
    list.append(row(top, 0, true));
    into.append(list);
    tell(top, top);
  };

  // --- Threads and sizes.
  const draw_groups = (into, top, which) => {
    const groups = new Map();
    each_row((stack, bytes, value, variance, is_before) => {
      const name = which === "thread" ? data.thread_of[stack] : bytes;
      const one = groups.get(name) || { value: 0, was: 0, variance: 0 };
      if (is_before) one.was += value;
      else one.value += value;
      one.variance += variance;
      groups.set(name, one);
    });
    const most = Math.max(1, ...[...groups.values()].map((one) => Math.max(Math.abs(one.value), Math.abs(one.was))));
    const head = [which === "thread" ? "thread, by the function in which it began" : data.sized ? "size of the objects" : "mean size of the call stack's objects", ...(is_diff ? ["before", "after", "change"] : ["value"]), "error", "share", ""];
    const table = element("table", { class: "groups" }, element("thead", {}, element("tr", {}, ...head.map((one, i) => element("th", { scope: "col", class: i ? "n" : "" }, one)))));
    const body = element("tbody");
    const order = which === "thread" ? (a, b) => Math.abs(b[1].value) + b[1].was - Math.abs(a[1].value) - a[1].was : (a, b) => a[0] - b[0];
    for (const [name, one] of [...groups].filter(([, group]) => group.value || group.was).sort(order)) {
      const title = which === "thread" ? data.threads[name] : object_size(name);
      const show = element("button", { type: "button", "aria-label": `${title}: show it alone in the flame graph`, onclick: () => { state.only[which] = name; state.view = "flame"; state.zoom = []; draw(); } }, title);
      const bar = element("i");
      bar.style.width = `${(100 * Math.max(Math.abs(one.value), Math.abs(one.was))) / most}%`;
      const numbers = is_diff ? [amount(one.was), amount(one.value), signed(one.value - one.was)] : [amount(one.value)];
      body.append(element("tr", {}, element("th", { scope: "row" }, show), ...numbers.map((text) => element("td", { class: "n" }, text)), element("td", { class: "n" }, `± ${amount(Math.sqrt(one.variance))}`), element("td", { class: "n" }, share(one.value, top.value)), element("td", { class: "b" }, bar)));
    }
    table.append(body);
    const name = which === "thread" ? "Threads" : "Sizes";
    into.append(element("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": name }, table));
    tell(top, top);
  };

  // --- Memory over time.
  const draw_time = (into) => {
    const kind = data.types.findIndex((one) => one.type === "inuse_space");
    state.kind = kind;
    kinds.value = kind;
    const totals = data.moments.map(([, live]) => live.reduce((sum, one, i) => sum + (i % 2 ? one : 0), 0));
    if (state.moment === null) state.moment = totals.indexOf(Math.max(...totals));
    const last = data.moments[data.moments.length - 1][0] || 1;
    const most = Math.max(1, ...totals);
    const points = data.moments.map(([at], i) => `${((1000 * at) / last).toFixed(1)},${(98 - (96 * totals[i]) / most).toFixed(1)}`);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 1000 100");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("class", "over");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `Memory in use over ${three(last)} s, at most ${size(most)}`);
    const part = (name, more) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [attribute, value] of Object.entries(more)) made.setAttribute(attribute, value);
      svg.append(made);
      return made;
    };
    part("polygon", { class: "area", points: `${(1000 * data.moments[0][0]) / last},98 ${points.join(" ")} 1000,98` });
    const now = part("line", { class: "now", y1: 0, y2: 100 });
    const slider = element("input", { type: "range", min: 0, max: data.moments.length - 1, step: 1, value: state.moment, "aria-label": "Moment" });
    const told = element("p");
    const graph = element("div");
    const show = () => {
      const at = data.moments[state.moment][0];
      now.setAttribute("x1", (1000 * at) / last);
      now.setAttribute("x2", (1000 * at) / last);
      const text = `${three(at)} s after its start: ${size(totals[state.moment])} in use; at most ${size(most)} when looked at`;
      told.textContent = text;
      slider.setAttribute("aria-valuetext", text);
      graph.replaceChildren();
      const top = make_tree();
      tell_hits(top);
      draw_flame(graph, top);
    };
    slider.addEventListener("input", () => { state.moment = Number(slider.value); state.zoom = []; show(); });
    into.append(svg, slider, told, graph);
    show();
  };

  // --- All of it.
  const tell_key = () => {
    key.replaceChildren();
    if (state.view !== "flame" && state.view !== "time") return;
    const entry = (swatch, text) => {
      const made = element("span", {}, text);
      made.style.setProperty("--swatch", swatch);
      key.append(made);
    };
    if (is_diff) {
      entry("var(--more)", "more than before");
      entry("var(--less)", "less");
      entry("var(--same)", "no change beyond two standard errors");
      key.append(element("em", {}, "Width: the larger of the two."));
      return;
    }
    const shown = new Set(data.names.map((one) => one[1]));
    if (shown.has(data.program)) entry("var(--c0)", data.program);
    places.slice(0, 6).forEach((place, i) => entry(`var(--c${1 + (i % 4)})`, place));
  };
  const draw = () => {
    for (const one of tabs.children) one.setAttribute("aria-pressed", String(one.dataset.view === state.view));
    if (state.view !== "time") state.moment = null;
    kinds.disabled = state.view === "time";
    only.replaceChildren();
    for (const [which, value] of Object.entries(state.only)) {
      const title = which === "thread" ? data.threads[value] : object_size(value);
      only.append(element("button", { type: "button", "aria-label": `Only ${title}: show the others too`, onclick: () => { delete state.only[which]; draw(); } }, `only ${title} ✕`));
    }
    reset.disabled = state.zoom.length === 0;
    view.replaceChildren();
    if (state.view === "time") {
      draw_time(view);
    } else {
      const top = make_tree();
      tell_hits(top);
      if (!top.lay) view.append(element("p", { class: "hint" }, "Nothing of this was sampled."));
      else if (state.view === "flame") draw_flame(view, top);
      else if (state.view === "tree") draw_tree(view, top);
      else draw_groups(view, top, state.view === "threads" ? "thread" : "size");
    }
    tell_key();
  };
  app.hidden = false;
  draw();
  let width = view.clientWidth;
  addEventListener("resize", () => {
    if (view.clientWidth === width) return;
    width = view.clientWidth;
    draw();
  });
  root.dataset.ready = "yes";
})();
