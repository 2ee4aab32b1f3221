// Draws the plots, and again when colours change; makes the legends, as buttons that show and hide a curve; switches between light and dark.
"use strict";
(() => {
  const root = document.documentElement;
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const keyOf = (trace) => trace.legendgroup || trace.name;
  const hidden = new Map(specs.map((spec) => [spec.id, new Set(spec.traces.filter((trace) => trace.off).map(keyOf))]));
  const kNarrow = 560;
  let printing = false;

  // --- Colours: names of the style sheet, as the theme has them.
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const coloured = (value) => {
    if (typeof value === "string") return /^@[a-z]+$/.test(value) ? colour(value.slice(1)) : value;
    if (Array.isArray(value)) return value.map(coloured);
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, coloured(one)]));
    return value;
  };

  // --- Plots.
  const merged = (base, more) => {
    const result = { ...base };
    for (const [key, value] of Object.entries(more)) {
      const both = value && result[key] && typeof value === "object" && !Array.isArray(value);
      result[key] = both ? merged(result[key], value) : value;
    }
    return result;
  };
  const common = (narrow) => {
    const axis = {
      gridcolor: "@line", linecolor: "@line", zerolinecolor: "@line", tickfont: { color: "@quiet" }, title: { font: { color: "@quiet" }, standoff: 8 },
      automargin: true, fixedrange: true, separatethousands: true,
    };
    return {
      axis,
      layout: {
        autosize: true, showlegend: false, dragmode: false, hovermode: "x unified", paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        margin: narrow ? { l: 34, r: 6, t: 8, b: 36 } : { l: 48, r: 12, t: 8, b: 40 },
        font: { family: "system-ui, 'Liberation Sans', sans-serif", size: narrow ? 11 : 13, color: "@text" },
        hoverlabel: { bgcolor: "@raised", bordercolor: "@line", font: { color: "@text" }, namelength: -1 },
      },
    };
  };
  const draw = (spec, width) => {
    const element = document.getElementById(spec.id);
    const { axis, layout } = common((width || element.clientWidth) < kNarrow);
    const full = merged(layout, { xaxis: axis, yaxis: axis });
    for (const key of Object.keys(spec.layout)) if (/^[xy]axis\d+$/.test(key)) full[key] = axis;
    const traces = spec.traces.map(({ off, ...trace }) => ({ ...trace, visible: !hidden.get(spec.id).has(keyOf(trace)) }));
    const size = width ? { autosize: false, width, height: spec.height } : { height: spec.height };
    const done = merged(merged(full, spec.layout), size);
    return Plotly.react(element, coloured(traces), coloured(done), { displayModeBar: false, responsive: true, showTips: false });
  };
  const drawAll = (width) => specs.forEach((spec) => draw(spec, width));

  // --- Legends.
  const kDashes = { dash: "7 4", dashdot: "7 3 2 3", longdash: "11 4", dot: "2 3" };
  const sample = (trace) => {
    const of = (trace.line || trace.marker).color.slice(1);
    const shape = trace.line
      ? `<line x1="0" y1="6" x2="26" y2="6" stroke="var(--${of})" stroke-width="3" stroke-dasharray="${kDashes[trace.line.dash] || ""}"/>`
      : `<rect x="6" y="0" width="14" height="12" fill="var(--${of})"/>` +
        (trace.marker.pattern && trace.marker.pattern.shape ? `<path d="M6 12L18 0M12 12L20 4" stroke="var(--ground)" stroke-width="2"/>` : "");
    return `<svg width="26" height="12" aria-hidden="true">${shape}</svg>`;
  };
  const legend = (spec) => {
    const place = document.getElementById(`${spec.id}-legend`);
    const named = spec.traces.filter((trace) => trace.showlegend !== false && trace.name);
    if (named.length < 2) return;
    for (const trace of named) {
      const button = document.createElement("button");
      const key = keyOf(trace);
      button.type = "button";
      button.setAttribute("aria-pressed", String(!hidden.get(spec.id).has(key)));
      button.innerHTML = sample(trace) + `<span>${trace.line ? key : trace.name}</span>`;
      button.addEventListener("click", () => {
        const off = hidden.get(spec.id);
        if (!off.delete(key)) off.add(key);
        button.setAttribute("aria-pressed", String(!off.has(key)));
        draw(spec);
      });
      place.append(button);
    }
  };

  // --- Light and dark.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const theme = document.getElementById("theme");
  const chosen = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const redraw = () => {
    theme.setAttribute("aria-pressed", String(chosen() === "dark"));
    if (window.Plotly) drawAll();
  };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = chosen() === "dark" ? "light" : "dark";
    redraw();
  });
  system.addEventListener("change", redraw);
  redraw();

  // --- Paper: light, and as wide as a page.
  let before;
  addEventListener("beforeprint", () => {
    if (printing || !window.Plotly) return;
    printing = true;
    before = root.dataset.theme;
    root.dataset.theme = "light";
    drawAll(660);
  });
  addEventListener("afterprint", () => {
    if (!printing) return;
    printing = false;
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    drawAll();
  });

  // --- The library, unpacked.
  const start = async () => {
    if (!specs.length) return;
    const packed = Uint8Array.from(atob(document.getElementById("library").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    specs.forEach(legend);
    for (const spec of specs) await draw(spec);
  };
  start()
    .catch((error) => {
      document.getElementById("plots-missing").hidden = false;
      console.error(error);
    })
    .finally(() => { root.dataset.ready = "yes"; });
})();
