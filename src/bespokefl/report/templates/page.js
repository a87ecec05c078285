"use strict";
// Draws the figures of a report from the numbers in the page: those in view first, then the others while the page is idle.
(() => {
  const page = document.documentElement;
  page.classList.add("scripted-page");
  const D = JSON.parse(document.getElementById("numbers").textContent);
  const M = D.methods;
  const shown = new Set(D.shown);
  const state = { axis: "round", system: 0, focus: D.focus, client: null, converging: D.focus };
  const plots = [...document.querySelectorAll(".plot")];
  const unit = D.percent ? " %" : "";
  const what = D.title;
  const sign = D.higher ? 1 : -1;
  const PRINT_WIDTHS = [300, 640]; // pixels: half the page, or all of it
  const TALLEST_SCREEN = 2500; // pixels; a taller window captures the whole page as soon as it has loaded
  let width = 0; // of the figure that is being drawn

  // -- Text and colours

  // Plotly interprets some HTML in its texts, so names are escaped.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const names = M.map((one) => plain(one.name));
  const clients = D.clients.map((one) => plain(one));
  const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
  const labels = M.map((one) => plain(cut(one.name, 22)));
  const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
  const show = (value) => (value === null ? "–" : D.percent ? value.toFixed(1) + unit : String(value));
  const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + show(Math.abs(value)).trim();
  const css = (name) => getComputedStyle(page).getPropertyValue(name).trim();
  const colour = (one) => css(one.colour < 0 ? "--grey" : `--c${one.colour}`);
  const fade = (hex, share) => hex + Math.round(255 * share).toString(16).padStart(2, "0");
  const visible = () => M.map((_, at) => at).filter((at) => shown.has(at));
  const mean = (values) => values.reduce((sum, one) => sum + one, 0) / values.length;
  const present = (values) => values.filter((one) => one !== null && one !== undefined);

  const narrow = () => width < 380;
  const axis = (title, more = {}) => ({
    ...(title ? { title: { text: title, standoff: 8 } } : {}), gridcolor: css("--grid"), zeroline: false, linecolor: css("--line"),
    tickcolor: css("--line"), automargin: true, ticks: "outside", ticklen: 4, ...more,
  });
  const layout = (more) => ({
    font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: css("--ink") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--grey"), font: { color: css("--ink"), size: 13 }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--ink") },
    margin: { l: 8, r: 14, t: 10, b: 8 },
    dragmode: matchMedia("(pointer: coarse), (max-width: 40rem)").matches ? false : "zoom", // on a touch screen, dragging scrolls the page
    ...more,
  });
  const line = (x0, y0, x1, y1, more = {}) =>
    ({ type: "line", x0, y0, x1, y1, layer: "below", line: { color: css("--grey"), width: 1, dash: "dash" }, ...more });
  const note = (text, more) => ({ text, showarrow: false, font: { size: 12, color: css("--soft") }, ...more });
  const ramp = () => [[0, css("--low")], [0.5, css("--middle")], [1, css("--high")]];

  const bytes = (value) => {
    const unit = Math.min(4, Math.max(0, Math.floor(Math.log10(value || 1) / 3)));
    return `${+(value / 1000 ** unit).toPrecision(3)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
  };
  const log = (values, say = (one) => one.toLocaleString("en")) => { // a logarithmic axis with readable ticks
    const all = present(values).filter((one) => one > 0), low = Math.min(...all), high = Math.max(...all);
    if (!(high > 4 * low) || all.length < present(values).length) return { type: "linear" };
    const ticks = [];
    const steps = high < 20 * low ? [1, 1.5, 2, 3, 5, 7] : [1, 2, 5];
    for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) ticks.push(...steps.map((one) => one * power));
    return { type: "log", tickvals: ticks, ticktext: ticks.map(say) };
  };

  function extent(values, room = 0.04) {
    const low = Math.min(...values), high = Math.max(...values);
    const more = (high - low) * room || Math.abs(high) * 0.05 || 1;
    return [low - more, high + more];
  }

  // Each function returns the traces, layout, height (or ratio of height to width) and summary sentence of a figure.
  const draw = {
    curves() {
      const key = state.axis, of = D.followed; // AUC and others are known at the end only
      const show = (value) => (of.percent ? `${value.toFixed(1)} %` : String(value));
      const traces = [], ends = [], free = [];
      for (const at of visible()) {
        const one = M[at], curve = one.curve;
        const x = curve && (key === "time" ? curve.time[state.system] : curve[key]);
        if (!x) continue;
        if (key === "bytes" && !x.some((sent) => sent)) { free.push(at); continue; }
        ends.push(x[x.length - 1]);
        const base = { x, type: "scatter", line: { color: colour(one), dash: one.dash, width: one.baseline ? 1.5 : 2 } };
        if (curve.sem.some((error) => error)) {
          const edge = (way) => curve.mean.map((value, k) => value + way * (curve.sem[k] || 0));
          traces.push(
            { ...base, y: edge(-1), mode: "lines", line: { width: 0 }, hoverinfo: "skip" },
            { ...base, y: edge(1), mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: fade(colour(one), 0.15), hoverinfo: "skip" },
          );
        }
        const cost = { round: "round %{x}", bytes: "%{text} sent", time: "after %{x:.4~g} T" }[key];
        traces.push({
          ...base, y: curve.mean, name: names[at], mode: "lines+markers", text: curve.bytes.map(bytes),
          marker: { symbol: one.symbol, size: 8, color: colour(one), maxdisplayed: 12 },
          customdata: curve.mean.map((value, k) => show(value) + (curve.sem[k] ? ` ± ${curve.sem[k].toFixed(2)}` : "")),
          hovertemplate: `<b>${names[at]}</b><br>%{customdata}<br>${cost}<extra></extra>`,
        });
      }
      const title = { round: "round", bytes: narrow() ? "data sent" : "data sent, up and down, all clients", time: "model time, T" }[key];
      const positive = ends.filter((end) => end > 0);
      const wide = key !== "round" && positive.length && Math.max(...positive) / Math.min(...positive) > 6;
      const reach = traces.flatMap((one) => one.x).filter((one) => one > 0);
      const say = key === "bytes" ? bytes : undefined;
      const far = [1, 2, 2.5, 5, 10].map((one) => one * 10 ** Math.floor(Math.log10(Math.max(...reach, 1) / 5))).find((one) => one * 6 >= Math.max(...reach, 1));
      const even = { tickvals: Array.from({ length: 8 }, (_, k) => k * far), ticktext: Array.from({ length: 8 }, (_, k) => bytes(k * far)) };
      for (const at of free) {
        const one = M[at], last = one.curve.mean.at(-1);
        traces.push({
          type: "scatter", mode: "lines+markers", name: names[at], x: [wide ? Math.min(...reach) : 0, Math.max(...reach, 1)], y: [last, last],
          line: { color: colour(one), dash: one.dash, width: 1.5 }, marker: { symbol: one.symbol, size: 8, color: colour(one) },
          hovertemplate: `<b>${names[at]}</b><br>${show(last)} at the end<br>sends nothing<extra></extra>`,
        });
      }
      return {
        traces, ratio: 0.5, low: 320, high: 480,
        summary: free.map((at) => `${M[at].name} sends nothing; the level line shows its final value.`).join(" "),
        layout: layout({
          xaxis: axis(title + (wide ? " (logarithmic)" : ""), { rangemode: "tozero", ...(wide ? log(reach, say) : key === "bytes" ? even : {}) }),
          yaxis: axis(`${of.title}${of.percent ? ", %" : ""}`),
        }),
      };
    },

    convergence() {
      const method = M[state.converging] && M[state.converging].client_curves ? M[state.converging] : M.find((one) => one.client_curves);
      const level = M.find((one) => one.constant && one.curve);
      const found = draw.track({ ...method.client_curves, name: `${D.followed.title}${D.followed.percent ? ", %" : ""}`, colour: colour(method) });
      if (level) {
        const x = method.client_curves.round, value = level.curve.mean[0];
        found.traces.push({ type: "scatter", mode: "lines", name: plain(level.name), x: [x[0], x.at(-1)], y: [value, value], line: { color: css("--grey"), dash: level.dash, width: 1.5 }, hovertemplate: `<b>${plain(level.name)}</b><br>mean: ${value}<extra></extra>` });
      }
      found.layout.yaxis.rangemode = "normal";
      return { ...found, ratio: 0.5, low: 320, high: 480 };
    },

    scatter(part) {
      const base = M[part.reference], own = M[state.focus];
      const kinds = [
        { word: "better off", symbol: "circle", size: 6, share: 0.7, colour: css("--better"), test: (gain) => gain > 0 },
        { word: "the same", symbol: "diamond-open", size: 5, share: 1, colour: css("--grey"), test: (gain) => gain === 0 },
        { word: "worse off", symbol: "triangle-down", size: 9, share: 0.9, colour: css("--worse"), test: (gain) => gain < 0 },
      ];
      const all = D.clients.map((_, at) => at).filter((at) => base.scores[at] !== null && own.scores[at] !== null);
      const gain = (at) => Math.round(sign * (own.scores[at] - base.scores[at]) * 1e6) / 1e6;
      const most = Math.max(...D.sizes);
      const levels = M.filter((one) => one.constant).map((one) => [one, mean(present(one.scores))]);
      const [low, high] = extent(all.flatMap((at) => [base.scores[at], own.scores[at]]).concat(levels.map(([, value]) => value)), 0.06);
      const traces = kinds.map((kind) => {
        const some = all.filter((at) => kind.test(gain(at)));
        return {
          type: "scatter", mode: "markers", name: kind.word, x: some.map((at) => base.scores[at]), y: some.map((at) => own.scores[at]),
          marker: {
            symbol: kind.symbol, opacity: 1, color: fade(kind.colour, kind.share), size: some.map((at) => kind.size + 9 * Math.sqrt(D.sizes[at] / most)),
            line: { width: kind.size === 5 ? 1.5 : 1, color: kind.size === 5 ? kind.colour : css("--card") },
          },
          text: some.map((at) => clients[at]),
          customdata: some.map((at) => [show(own.scores[at]), show(base.scores[at]), signed(gain(at) * sign).replace("%", "points"), D.sizes[at]]),
          hovertemplate: `<b>%{text}</b>, ${kind.word}<br>${names[state.focus]}: %{customdata[0]}<br>${names[part.reference]}: %{customdata[1]}<br>difference: %{customdata[2]}<br>%{customdata[3]} training examples<extra></extra>`,
        };
      });
      const num = (kind) => all.filter((at) => kind.test(gain(at))).length;
      const upper = D.higher ? "better off" : "worse off", lower = D.higher ? "worse off" : "better off";
      return {
        traces: traces.concat(ring((at) => base.scores[at], (at) => own.scores[at])), ratio: 0.92, low: 300, high: 520,
        summary: `${num(kinds[0])} of ${count(all.length, "client")} better off, ${num(kinds[2])} worse off` + (num(kinds[1]) ? `, ${num(kinds[1])} the same.` : "."),
        layout: layout({
          xaxis: axis(`with ${labels[part.reference]}${D.percent ? ", %" : ""}`, { range: [low, high] }),
          yaxis: axis(`with ${labels[state.focus]}${D.percent ? ", %" : ""}`, { range: [low, high] }),
          shapes: [line(low, low, high, high), ...levels.flatMap(([one, value]) => [
            line(low, value, high, value, { line: { color: css("--grey"), width: 1, dash: one.dash } }),
            line(value, low, value, high, { line: { color: css("--grey"), width: 1, dash: one.dash } }),
          ])],
          margin: { l: 8, r: 14, t: 22, b: 8 },
          annotations: [
            ...levels.map(([one, value]) => note(plain(one.name), { x: high, y: value, xanchor: "right", yanchor: "bottom" })),
            note(`▲ ${upper}`, { xref: "paper", yref: "paper", x: 0, y: 1, xanchor: "left", yanchor: "bottom" }), // outside the points
            note(`▼ ${lower}`, { xref: "paper", yref: "paper", x: 0.99, y: 0.02, xanchor: "right", yanchor: "bottom" }),
          ],
        }),
      };
    },

    size() {
      const all = D.clients.map((_, at) => at).sort((a, b) => D.sizes[a] - D.sizes[b]);
      const num = Math.max(2, Math.min(8, Math.floor(all.length / 5)));
      const bins = [];
      for (const at of all) { // clients of equal size stay in one bin
        const want = Math.min(num - 1, Math.floor((bins.flat().length * num) / all.length));
        const last = bins[bins.length - 1];
        if (last && (bins.length - 1 >= want || D.sizes[last[last.length - 1]] === D.sizes[at])) last.push(at);
        else bins.push([at]);
      }
      const focus = M[state.focus], some = all.filter((at) => focus.scores[at] !== null);
      const traces = [{
        type: "scatter", mode: "markers", name: names[state.focus], x: some.map((at) => D.sizes[at]), y: some.map((at) => focus.scores[at]),
        marker: { symbol: focus.symbol, color: fade(colour(focus), 0.35), size: 7 }, text: some.map((at) => clients[at]),
        customdata: some.map((at) => show(focus.scores[at])),
        hovertemplate: `<b>%{text}</b><br>${names[state.focus]}: %{customdata}<br>%{x} training examples<extra></extra>`,
      }];
      for (const at of visible()) {
        const one = M[at];
        const full = bins.filter((bin) => bin.some((client) => one.scores[client] !== null));
        const score = (bin) => mean(present(bin.map((client) => one.scores[client])));
        traces.push({
          type: "scatter", mode: "lines+markers", name: names[at],
          x: full.map((bin) => Math.exp(mean(bin.map((client) => Math.log(D.sizes[client] || 0.5))))), y: full.map(score),
          line: { color: colour(one), dash: one.dash, width: one.baseline ? 1.5 : 2 }, marker: { symbol: one.symbol, size: 9, color: colour(one) },
          customdata: full.map((bin) => [show(score(bin)), D.sizes[bin[0]], D.sizes[bin[bin.length - 1]], count(bin.length, "client")]),
          hovertemplate: `<b>${names[at]}</b><br>%{customdata[0]}<br>%{customdata[3]} with %{customdata[1]} to %{customdata[2]} training examples<extra></extra>`,
        });
      }
      const scale = log(D.sizes);
      return {
        traces: traces.concat(ring((at) => D.sizes[at], (at) => focus.scores[at])), ratio: 0.5, low: 320, high: 480,
        layout: layout({
          xaxis: axis(narrow() ? "training examples" : "training examples of a client", scale),
          yaxis: axis(`${what}${D.percent ? ", %" : ""}`),
        }),
      };
    },

    histogram() {
      const rows = visible();
      const values = rows.flatMap((at) => present(M[at].scores));
      const [step, from] = bins(values, 24);
      const num = Math.max(1, Math.ceil((Math.max(...values) - from) / step - 1e-9)); // the last bin includes its upper end
      const counts = rows.map((at) => {
        const found = new Array(num).fill(0);
        for (const value of present(M[at].scores)) found[Math.min(num - 1, Math.floor((value - from) / step + 1e-9))] += 1;
        return found;
      });
      const most = Math.max(...counts.flat());
      const traces = rows.flatMap((at, row) => [
        {
          type: "bar", name: names[at], x: counts[row].map((_, k) => from + (k + 0.5) * step), y: counts[row].map((one) => (one ? (0.86 * one) / most : null)),
          base: counts[row].map(() => rows.length - 1 - row), width: step * 0.94,
          marker: { color: fade(colour(M[at]), 0.7), line: { color: colour(M[at]), width: 1 } },
          customdata: counts[row].map((one, k) => [count(one, "client"), show(from + k * step), show(from + (k + 1) * step)]),
          hovertemplate: `<b>${names[at]}</b><br>%{customdata[0]} from %{customdata[1]} to %{customdata[2]}<extra></extra>`,
        },
        meanMarker(at, mean(present(M[at].scores)), rows.length - 1 - row, "mean"),
      ]);
      return ridges(rows, traces, `${what}${D.percent ? ", %" : ""}`, {});
    },

    density() {
      const rows = visible().filter((at) => M[at].gains && present(M[at].gains).length);
      const values = rows.flatMap((at) => present(M[at].gains));
      const least = D.percent ? 0.5 : Math.max(1e-6, (Math.max(...values) - Math.min(...values)) / 100);
      const curves = rows.map((at) => {
        const own = present(M[at].gains), middle = mean(own);
        const deviation = Math.sqrt(mean(own.map((one) => (one - middle) ** 2)));
        const width = Math.max(least, 1.06 * deviation * own.length ** -0.2); // Silverman's rule
        return { own, width };
      });
      const low = Math.min(...curves.map((one) => Math.min(...one.own) - 3 * one.width));
      const high = Math.max(...curves.map((one) => Math.max(...one.own) + 3 * one.width));
      const x = Array.from({ length: 161 }, (_, k) => low + ((high - low) * k) / 160);
      const heights = curves.map(({ own, width }) =>
        x.map((at) => own.reduce((sum, one) => sum + Math.exp(-(((at - one) / width) ** 2) / 2), 0) / (own.length * width * Math.sqrt(2 * Math.PI))));
      const most = Math.max(...heights.flat());
      const traces = rows.flatMap((at, row) => {
        const base = rows.length - 1 - row, gains = curves[row].own;
        const part = (test) => Math.round((100 * gains.filter(test).length) / gains.length);
        return [
          { type: "scatter", mode: "lines", x, y: x.map(() => base), line: { color: css("--line"), width: 1 }, hoverinfo: "skip" },
          {
            type: "scatter", mode: "lines", name: names[at], x, y: heights[row].map((one) => base + (0.9 * one) / most), fill: "tonexty",
            fillcolor: fade(colour(M[at]), 0.3), line: { color: colour(M[at]), width: 1.5 },
            hovertemplate: `<b>${names[at]}</b><br>${part((one) => one > 0)} % of clients better off, ${part((one) => one < 0)} % worse off<extra></extra>`,
          },
          meanMarker(at, mean(gains), base, "mean gain"),
        ];
      });
      return ridges(rows, traces, (narrow() ? "gain" : "gain over the better of Local and FedAvg") + (D.percent ? ", points" : ""), { shapes: [line(0, -0.1, 0, rows.length, { layer: "above" })], range: [low, high] },
        rows.length ? "" : "None of the methods shown has gains; choose another one above.");
    },

    fairness() {
      const rows = visible().filter((at) => M[at].gains); // without a client that is better off there is nothing to measure
      const across = width < 560 ? 1 : width < 860 ? 2 : 4;
      const down = Math.ceil(D.measures.length / across);
      const traces = [], more = { annotations: [] };
      D.measures.forEach(([name, lower], k) => {
        const id = k ? k + 1 : "", values = rows.map((at) => M[at].fair[k]), known = present(values);
        const rated = present(rows.filter((at) => !M[at].constant).map((at) => M[at].fair[k]));
        const best = rated.length ? (lower ? Math.min(...rated) : Math.max(...rated)) : null;
        traces.push({
          type: "bar", orientation: "h", name, xaxis: `x${id}`, yaxis: `y${id}`, x: values, y: rows.map((_, row) => -row),
          marker: { color: rows.map((at) => fade(colour(M[at]), 0.65)), line: { color: rows.map((_, row) => (values[row] === best && !M[rows[row]].constant ? css("--ink") : "rgba(0,0,0,0)")), width: 2 } },
          text: values.map((value) => (value === null ? "n/a" : String(+value.toPrecision(3)))), textposition: "inside", insidetextanchor: "start", textangle: 0, constraintext: "none", cliponaxis: false,
          insidetextfont: { color: css("--ink"), size: 12 },
          customdata: rows.map((at) => names[at]), hovertemplate: `<b>%{customdata}</b><br>${name}: %{x}<extra></extra>`,
        });
        const column = k % across, row = Math.floor(k / across), gap = across > 1 ? 0.03 : 0;
        const wide = (1 - gap * (across - 1)) / across, tall = 1 / down;
        const foot = 1 - (row + 1) * tall, room = Math.min(0.3 * tall, 22 / (down * (rows.length * 24 + 50)));
        more[`xaxis${id}`] = axis("", { domain: [column * (wide + gap), column * (wide + gap) + wide], anchor: `y${id}`, nticks: 4, range: known.length ? [0, Math.max(...known) * 1.02] : [0, 1], fixedrange: true });
        more[`yaxis${id}`] = axis("", {
          domain: [foot + (row < down - 1 ? 1.2 * room : 0), foot + tall - room], anchor: `x${id}`, tickvals: rows.map((_, at) => -at), ticktext: column ? rows.map(() => "") : rows.map((at) => labels[at]),
          range: [-rows.length + 0.4, 0.6], showgrid: false, ticks: "", fixedrange: true,
        });
        more.annotations.push(note(`<b>${name}</b>${lower ? " (lower is fairer)" : ""}`, { xref: `x${id} domain`, yref: `y${id} domain`, x: 0, y: 1, xanchor: "left", yanchor: "bottom", font: { size: 12.5, color: css("--ink") } }));
      });
      return { traces, height: down * (rows.length * 24 + 50) + 24, layout: layout({ ...more, bargap: 0.3, dragmode: false }), summary: rows.length ? "" : "None of the methods shown has gains; choose another one above." };
    },

    // -- Figures that only some methods have

    heat(part) {
      const order = part.order.map((at) => clients[at]), num = order.length;
      const few = num * 16 < width;
      const traces = [{
        type: "heatmap", z: part.weights.map((row) => row.map((one) => Math.log10(Math.max(one, 1)) - 2)), x0: 0, dx: 1, y0: 0, dy: 1,
        customdata: part.weights.map((row, a) => row.map((one, b) => [order[a], order[b], (one / 100).toPrecision(3)])),
        hovertemplate: "<b>%{customdata[0]}</b> gives %{customdata[2]} %<br>to <b>%{customdata[1]}</b><extra></extra>",
        colorscale: ramp(), zmin: -2, zmax: 2, xgap: few ? 1 : 0, ygap: few ? 1 : 0,
        colorbar: { tickvals: [-2, -1, 0, 1, 2], ticktext: ["≤ .01 %", ".1 %", "1 %", "10 %", "100 %"], thickness: 10, outlinewidth: 0, len: 0.9 },
      }];
      const edges = [0, ...part.bounds, num];
      const shapes = part.bounds.length ? edges.slice(1).map((end, k) => ({ type: "rect", x0: edges[k] - 0.5, x1: end - 0.5, y0: edges[k] - 0.5, y1: end - 0.5, line: { color: css("--worse"), width: 2 } })) : [];
      const ticks = few && num <= 30 ? { tickvals: order.map((_, k) => k), ticktext: order.map((one) => cut(one, 9)), tickfont: { size: 9 } } : { showticklabels: false, ticks: "" };
      return {
        traces, ratio: 0.85, low: 280, high: 560,
        layout: layout({ shapes, xaxis: axis("learns from", { ...ticks, tickangle: -90, showgrid: false, constrain: "domain" }), yaxis: axis("client", { ...ticks, autorange: "reversed", showgrid: false, scaleanchor: "x", constrain: "domain" }) }),
      };
    },

    silhouette(part) {
      const k = part.values.map((_, at) => at + 1).filter((one) => part.values[one - 1] !== null);
      const traces = [{
        type: "scatter", mode: "lines+markers", x: k, y: k.map((one) => part.values[one - 1]), line: { color: css("--c0"), width: 2 },
        marker: { opacity: 1, size: k.map((one) => (one === part.chosen ? 16 : k.length > 60 ? 3 : 6)), symbol: k.map((one) => (one === part.chosen ? "star" : "circle")), color: k.map((one) => css(one === part.chosen ? "--worse" : "--c0")) },
        hovertemplate: `%{x} ${part.noun}: %{y:.3f}<extra></extra>`,
      }];
      const best = k.reduce((a, b) => (part.values[b - 1] > part.values[a - 1] ? b : a));
      return {
        traces, ratio: 0.7, low: 280, high: 400, summary: `Highest for ${best} ${part.noun}` + (part.chosen ? `; ${part.chosen} ${part.verb}.` : "."),
        layout: layout({ xaxis: axis(part.noun === "streams" && !narrow() ? "streams (models on the server)" : part.noun, { rangemode: "tozero" }), yaxis: axis("silhouette") }),
      };
    },

    grid(part) {
      const pick = part.client ?? -1;
      const points = part.values[0].map((_, k) => k);
      const values = pick >= 0 ? part.values[pick] : points.map((k) => { const some = present(part.values.map((one) => one[k])); return some.length ? mean(some) : null; });
      const chosen = points.map((k) => part.chosen.filter((one) => one === k).length);
      const cells = (f) => part.temperatures.map((_, t) => part.shares.map((_, s) => f(s * part.temperatures.length + t)));
      const star = (k) => (pick >= 0 ? (part.chosen[pick] === k ? " ★" : "") : chosen[k] ? `<br>★ ${chosen[k]}` : "");
      const known = present(values), middle = known.length ? (Math.min(...known) + Math.max(...known)) / 2 : 0;
      const word = (text) => part[text].map((one) => String(one));
      return {
        traces: [{
          type: "heatmap", x: word("shares").map((one) => `λ = ${one}`), y: word("temperatures").map((one) => `T = ${one}`), z: cells((k) => values[k]),
          colorscale: ramp(), showscale: false, xgap: 2, ygap: 2, hoverongaps: false,
          customdata: cells((k) => [values[k] === null ? "–" : values[k].toFixed(1), count(chosen[k], "client")]),
          hovertemplate: "<b>%{x}, %{y}</b><br>%{customdata[0]} %<br>chosen by %{customdata[1]}<extra></extra>",
        }],
        height: 300,
        layout: layout({
          xaxis: axis("", { type: "category", showgrid: false, fixedrange: true, ticks: "" }), yaxis: axis("", { type: "category", showgrid: false, fixedrange: true, ticks: "" }),
          annotations: cells((k) => k).flatMap((row, t) => row.map((k, s) => note(values[k] === null ? "–" : values[k].toFixed(1) + star(k), {
            x: s, y: t, font: { size: 12.5, color: values[k] === null ? css("--soft") : values[k] > middle ? css("--card") : css("--ink") },
          }))),
        }),
      };
    },

    teachers(part) {
      return clientHistogram(part.rounds, "round of the teacher", css("--c0"), [0.5, part.last + 0.5]);
    },

    latest(part) {
      return clientHistogram(part.values, part.name, css("--c2"));
    },

    track(part) {
      const traces = part.clients.map((at, k) => ({
        type: "scatter", mode: "lines", x: part.round, y: part.values[k], connectgaps: true, line: { color: fade(css("--grey"), part.clients.length > 20 ? 0.22 : 0.4), width: 1 },
        name: clients[at], hovertemplate: `<b>${clients[at]}</b><br>round %{x}: %{y}<extra></extra>`,
      }));
      const [low, middle, high] = part.bands;
      const base = { type: "scatter", x: part.round, mode: "lines" };
      traces.push(
        { ...base, y: low, line: { width: 0 }, hoverinfo: "skip" },
        { ...base, y: high, line: { width: 0 }, fill: "tonexty", fillcolor: fade(part.colour ?? css("--c0"), 0.2), hoverinfo: "skip" },
        { ...base, y: middle, line: { color: part.colour ?? css("--c0"), width: 3 }, name: "median", hovertemplate: "<b>median</b><br>round %{x}: %{y}<extra></extra>" },
      );
      return { traces, ratio: 0.7, low: 280, high: 400, layout: layout({ xaxis: axis("round"), yaxis: axis(part.name, { rangemode: "tozero" }) }) };
    },

    confidence(part) {
      return clientScatter(D.sizes, part.values, "training examples of a client", "confidence τ", true);
    },

    makeup(part) {
      return clientScatter(part.deviation, part.trace, narrow() ? "deviation ‖μ − w‖²" : "deviation from the global head, ‖μ − w‖²", "uncertainty, Tr Σ", false);
    },

    clusters(part) {
      const ids = [...new Set(present(part.members))].sort((a, b) => a - b);
      const groups = part.groups ? [...new Set(part.groups)].sort() : [null];
      const patterns = ["", "/", ".", "x", "-", "\\", "|", "+"];
      const traces = groups.map((group, g) => {
        const inside = ids.map((id) => part.members.map((one, at) => (one === id && (group === null || part.groups[at] === group) ? at : -1)).filter((at) => at >= 0));
        return {
          type: "bar", name: group === null ? "" : `true group ${plain(group)}`, x: ids.map((id) => `cluster ${id + 1}`), y: inside.map((one) => one.length),
          marker: { color: fade(css(`--c${g % 6}`), 0.7), line: { color: css(`--c${g % 6}`), width: 1 }, pattern: { shape: patterns[g % 8], fillmode: "overlay", bgcolor: fade(css(`--c${g % 6}`), 0.7), fgcolor: css("--card"), size: 8, solidity: 0.3 } },
          customdata: inside.map((one) => (group === null ? "" : `<b>true group ${plain(group)}</b><br>`) + listing(one)), hovertemplate: "%{customdata}<extra>%{x}</extra>",
        };
      });
      return { traces, ratio: 0.7, low: 280, high: 400, layout: layout({ barmode: "stack", bargap: 0.35, xaxis: axis("", { type: "category", fixedrange: true }), yaxis: axis("clients", integerAxis(ids.map((id) => part.members.filter((one) => one === id).length))) }) };
    },
  };

  // -- Parts that several figures share

  const integerAxis = (counts) => ({ dtick: Math.max(1, Math.ceil(Math.max(...counts) / 6)), tick0: 0, rangemode: "tozero" });

  const listing = (some) => {
    const few = some.slice(0, 8).map((at) => clients[at]).join("<br>");
    return `${count(some.length, "client")}:<br>${few}` + (some.length > 8 ? `<br>and ${some.length - 8} more` : "");
  };

  function bins(values, most) { // returns a round bin width and the start of the first bin
    const low = Math.min(...values), high = Math.max(...values);
    const rough = (high - low) / most || Math.abs(high) / 20 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
    return [step, Math.floor(low / step + 1e-9) * step];
  }

  function meanMarker(at, value, base, word) {
    const one = M[at];
    return {
      type: "scatter", mode: "markers", x: [value], y: [base], name: names[at], cliponaxis: false,
      marker: { symbol: one.symbol, size: 11, color: colour(one), line: { color: one.symbol.endsWith("open") ? colour(one) : css("--card"), width: one.symbol.endsWith("open") ? 2 : 1.5 } },
      hovertemplate: `<b>${names[at]}</b><br>${word}: ${D.percent ? value.toFixed(1) + (word === "mean" ? " %" : " points") : value.toPrecision(4)}<extra></extra>`,
    };
  }

  function ridges(rows, traces, title, more, summary) {
    return {
      traces, height: Math.max(220, visible().length * 58 + 70), summary: summary ?? (rows.length ? "" : "No method is shown; choose one above."),
      layout: layout({
        barmode: "overlay", shapes: more.shapes, xaxis: axis(title, { range: more.range }),
        yaxis: axis("", { tickvals: rows.map((_, row) => rows.length - 1 - row), ticktext: rows.map((at) => labels[at]), range: [-0.2, rows.length], showgrid: true, ticks: "", fixedrange: true }),
      }),
    };
  }

  function ring(x, y) { // around the client that is searched for
    const at = state.client;
    if (at === null || y(at) === null) return [];
    return [{ type: "scatter", mode: "markers+text", x: [x(at)], y: [y(at)], text: [cut(clients[at], 24)], textposition: "top center", textfont: { color: css("--ink"), size: 13 }, marker: { symbol: "circle-open", size: 22, color: css("--ink"), line: { width: 2.5 } }, hoverinfo: "skip" }];
  }

  function clientHistogram(values, title, fill, range) { // number of clients by value
    const all = values.map((_, at) => at).filter((at) => values[at] !== null);
    const own = all.map((at) => values[at]);
    const integers = own.every(Number.isInteger);
    let [step, from] = bins(own, 30);
    if (integers) [step, from] = [Math.max(1, Math.ceil(step)), Math.floor(from) - 0.5];
    const num = Math.floor((Math.max(...own) - from) / step + 1e-9) + 1;
    const cells = Array.from({ length: num }, () => []);
    for (const at of all) cells[Math.min(num - 1, Math.floor((values[at] - from) / step + 1e-9))].push(at);
    const full = cells.map((_, k) => k).filter((k) => cells[k].length);
    const low = Math.min(...own), high = Math.max(...own);
    const between = integers ? { tick0: 0, dtick: Math.max(1, Math.ceil((range ? range[1] - range[0] : high - low) / 10)), range: range ?? (high - low < 4 ? [low - 2.5, high + 2.5] : undefined) } : { range };
    return {
      traces: [{ type: "bar", x: full.map((k) => from + (k + 0.5) * step), y: full.map((k) => cells[k].length), width: step * 0.9, marker: { color: fade(fill, 0.7), line: { color: fill, width: 1 } },
        customdata: full.map((k) => [step === 1 && integers ? `${from + 0.5 + k}` : `${+(from + k * step + (integers ? 0.5 : 0)).toPrecision(4)} to ${+(from + (k + 1) * step - (integers ? 0.5 : 0)).toPrecision(4)}`, listing(cells[k])]), hovertemplate: `${title} <b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>` }],
      ratio: 0.7, low: 280, high: 400, layout: layout({ xaxis: axis(title, between), yaxis: axis("clients", integerAxis(cells.map((some) => some.length))) }),
    };
  }

  function clientScatter(x, y, across, up, sizes) {
    const all = D.clients.map((_, at) => at).filter((at) => x[at] !== null && y[at] !== null);
    return {
      traces: [{
        type: "scatter", mode: "markers", x: all.map((at) => x[at]), y: all.map((at) => y[at]), text: all.map((at) => clients[at]),
        marker: { color: fade(css("--c0"), 0.65), size: 9, line: { color: css("--card"), width: 0.7 } }, hovertemplate: `<b>%{text}</b><br>${up}: %{y}<br>${across}: %{x}<extra></extra>`,
      }].concat(ring((at) => x[at], (at) => y[at])),
      ratio: 0.7, low: 280, high: 400, layout: layout({ xaxis: axis(across, sizes ? log(x) : {}), yaxis: axis(up) }),
    };
  }

  // -- Drawing and redrawing

  const drawn = new Set();
  // By default Plotly offers to upload the data; only these buttons are shown.
  const config = {
    displaylogo: false, responsive: false, displayModeBar: "hover", showSendToCloud: false, showTips: false,
    modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]], toImageButtonOptions: { format: "svg" },
  };

  // Plotly is large: it runs when the page is idle or a figure comes near, so that text and tables appear first.
  function runPlotly() {
    const text = document.getElementById("plotly");
    if (!text) return;
    const script = document.createElement("script");
    script.textContent = text.textContent;
    text.remove();
    document.head.append(script);
  }

  function drawFigure(plot) {
    runPlotly();
    const part = (D.parts || {})[plot.dataset.key] || {};
    const frame = plot.parentElement, style = getComputedStyle(frame);
    const room = frame.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    width = page.classList.contains("paper") ? PRINT_WIDTHS[frame.classList.contains("half") ? 0 : 1] : Math.floor(room);
    const figure = draw[plot.dataset.kind](part);
    const height = figure.height ?? Math.round(Math.min(figure.high, Math.max(figure.low, width * figure.ratio)));
    const summary = frame.querySelector(".summary");
    if (summary) summary.textContent = figure.summary || "";
    drawn.add(plot);
    Plotly.react(plot, figure.traces, { ...figure.layout, width, height }, config);
  }

  const redraw = (test = () => true) => [...drawn].filter(test).forEach(drawFigure);
  const kinds = (...some) => (plot) => some.includes(plot.dataset.kind);
  // Figures near the viewport are queued; each is painted before the next one is drawn, visible ones first. The others
  // follow while the page is idle, so that a picture of the whole page shows them all.
  const waiting = new Set();
  function next() {
    const away = (plot) => { const box = plot.getBoundingClientRect(); return Math.max(box.top - innerHeight, -box.bottom, 0); };
    const plot = [...waiting].reduce((a, b) => (away(b) < away(a) ? b : a));
    waiting.delete(plot);
    if (!drawn.has(plot)) drawFigure(plot);
    if (waiting.size) setTimeout(() => requestAnimationFrame(next));
  }
  const idle = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
  function drawRest() {
    runPlotly();
    const plot = plots.find((one) => !drawn.has(one));
    if (!plot) return;
    if (!waiting.size) drawFigure(plot);
    idle(drawRest);
  }
  const observer = new IntersectionObserver((seen) => {
    const first = !waiting.size;
    for (const one of seen) if (one.isIntersecting) { observer.unobserve(one.target); if (!drawn.has(one.target)) waiting.add(one.target); }
    if (first && waiting.size) next();
  }, { rootMargin: "300px 0px" });
  if (innerHeight > TALLEST_SCREEN) plots.forEach(drawFigure);
  else {
    plots.forEach((plot) => observer.observe(plot));
    idle(drawRest);
  }

  let wait = 0, last = page.clientWidth;
  addEventListener("resize", () => {
    clearTimeout(wait);
    wait = setTimeout(() => { if (page.clientWidth !== last) { last = page.clientWidth; redraw(); } }, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
  // Not all programs that print a page send both events.
  const print = (starts) => { page.classList.toggle("paper", starts); plots.forEach(drawFigure); };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", (media) => { if (media.matches !== page.classList.contains("paper")) print(media.matches); });

  // -- The legend, shared by all figures

  const chips = [...document.querySelectorAll("[data-method]")];
  const ofMethods = kinds("curves", "size", "histogram", "density", "fairness");
  function updateLegend() {
    for (const chip of chips) chip.setAttribute("aria-pressed", shown.has(+chip.dataset.method));
    redraw(ofMethods);
  }
  for (const chip of chips) {
    const at = +chip.dataset.method;
    chip.title = "click to show or hide, double-click to show only this one";
    chip.addEventListener("click", () => { shown.has(at) ? shown.delete(at) : shown.add(at); updateLegend(); });
    chip.addEventListener("dblclick", () => { shown.clear(); shown.add(at); updateLegend(); });
  }
  const presets = document.querySelector(".presets");
  if (presets) {
    const all = M.map((_, at) => at);
    for (const [word, some] of [["best", D.shown], ["all", all], ["none", []]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = word;
      button.addEventListener("click", () => { shown.clear(); some.forEach((at) => shown.add(at)); updateLegend(); });
      presets.append(button);
    }
  }
  updateLegend();

  // -- Controls

  for (const input of document.querySelectorAll("input[name=axis]")) {
    if (input.checked) state.axis = input.value; // the browser may restore an earlier choice
    input.addEventListener("change", () => { state.axis = input.value; showSystems(); redraw(kinds("curves")); });
  }
  const system = document.querySelector("select[name=system]");
  const showSystems = () => { if (system) system.hidden = state.axis !== "time"; };
  showSystems();
  if (system) {
    state.system = +system.value;
    system.addEventListener("change", () => { state.system = +system.value; redraw(kinds("curves")); });
  }
  const focus = document.querySelector("select[name=focus]");
  if (focus) {
    focus.value = String(state.focus);
    focus.addEventListener("change", () => { state.focus = +focus.value; redraw(kinds("scatter", "size")); describeClient(); });
  }
  const converging = document.querySelector("select[name=converging]");
  if (converging) {
    converging.value = String(state.converging);
    converging.addEventListener("change", () => { state.converging = +converging.value; redraw(kinds("convergence")); });
  }
  for (const select of document.querySelectorAll("select[name=client]")) {
    const plot = select.closest("figure").querySelector(".plot");
    select.value = "-1";
    select.addEventListener("change", () => { D.parts[plot.dataset.key].client = +select.value; drawFigure(plot); });
  }
  const find = document.querySelector("input[name=find]");
  if (find) {
    const list = document.getElementById("names");
    for (const name of D.clients) list.append(new Option(name, name));
    find.value = "";
    find.addEventListener("input", () => {
      const at = D.clients.indexOf(find.value);
      const before = state.client;
      state.client = at < 0 ? null : at;
      if (state.client !== before) redraw(kinds("scatter", "size", "confidence", "makeup"));
      describeClient();
    });
  }
  function describeClient() { // about the client that is searched for
    const output = document.getElementById("found"), at = state.client;
    if (at === null) {
      output.textContent = find && find.value && !D.clients.some((one) => one.startsWith(find.value)) ? "No client has this name." : "";
      return;
    }
    const known = M.map((one, k) => k).filter((k) => M[k].scores[at] !== null && !M[k].constant);
    const words = [`${D.clients[at]}: ${count(D.sizes[at], "training example")}.`];
    if (!known.length) words.push("It has no test data and therefore no score.");
    else {
      const best = known.reduce((a, b) => (sign * M[b].scores[at] > sign * M[a].scores[at] ? b : a));
      words.push(`Best method: ${M[best].name}, ${show(M[best].scores[at])}.`);
      const constants = M.map((one, k) => k).filter((k) => M[k].constant);
      for (const k of new Set([...D.references, state.focus, ...constants])) if (k !== best && M[k].scores[at] !== null) words.push(`${M[k].name}: ${show(M[k].scores[at])}.`);
      const measured = M.filter((one) => one.gains && one.gains[at] !== null && !one.constant);
      if (measured.length) words.push(`${measured.filter((one) => one.gains[at] > 0).length} of ${count(measured.length, "method")} leave it better off than the better of Local and FedAvg.`);
    }
    output.textContent = words.join(" ");
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "copied";
      } catch { // browsers may forbid this for local files; select the text instead
        getSelection().selectAllChildren(text);
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 2000);
    });
  }
})();
